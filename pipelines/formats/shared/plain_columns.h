/* Columns that rows are added to, and the numbers that stand in them: what compiled code of several formats shares.
 *
 * What a format's own code takes for a plain record comes out as Arrow's parser would give it, to the last bit; any other
 * record is left to that parser, whether it is faulty or only unusual: what is not certain here is not plain. So is a
 * number beyond its type, or too fine for it, or of more digits than 64 bits hold. Refused are records that are certainly
 * faulty: those of which a format says so, and plain ones in which a value is missing or breaks a rule of its field, as far
 * as the rules are known here. The verdicts are those of `arrow_columns.py`.
 *
 * Called through ctypes, without the interpreter's lock. Nothing is allocated: the caller hands in every buffer, large
 * enough for the bytes of the text (`plain_rows.py`). A record that turns out not to be plain leaves no trace in them.
 */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum kind { RECORD, LIST, FLOAT, DOUBLE, INTEGER, BOOL, TEXT };
enum verdict { LEFT, PLAIN, MALFORMED, EMPTY, FAULTY };
enum fault { NOT_ALLOWED = 1, NOT_FINITE, OUT_OF_RANGE, INFINITE, WRONG_SHAPE, MISSING, WRONG_TYPE, FAULTS };
enum { DIGITS = 19, LARGEST_EXPONENT = 300, REMEMBERED = 512 };

/* A key as it stood at the same place of the record before, and whose it is. */
typedef struct {
    const uint8_t *bytes; /* behind the opening quote */
    int64_t length;       /* with the closing one */
    int64_t member;       /* the node, or -1 for a key that nobody asks for */
} Key;

typedef union {
    double real;
    int64_t whole;
} Value;

/* A field, a record around fields, or a list of either; laid out alike in plain_rows.py. */
typedef struct {
    int64_t kind;
    int64_t first, members; /* the nodes inside: a record's fields, a list's element */
    const uint8_t *name;    /* its key in the record around it, with the closing quote */
    int64_t name_length;
    void *values;     /* of a list none; the bytes of texts */
    int32_t *offsets; /* of a list and of texts: one more than there are rows */
    uint8_t *valid;   /* a bit for each row, all set before */
    int64_t rows, nulls, length; /* length: bytes of texts */
    int64_t seen;     /* the object in which the field was last seen */
    int64_t objects;  /* of a record: how many were begun */
    Key *keys;        /* of a record: REMEMBERED of them */
    int64_t place;    /* of the field among those that are judged here; the greatest for one that is not */
    int64_t present;  /* whether a null is a fault */
    int64_t elements; /* of a list: how many it has to have, -1 for any number */
    int64_t ruled;    /* whether a finite number may break a rule */
    Value least, most;
    const Value *listed; /* what is allowed alone, where that is listed */
    int64_t listed_count;
} Node;

/* Where a field's columns ended before a record, to go back to. */
typedef struct {
    int64_t rows, nulls, length;
} Mark;

typedef struct {
    Node *nodes;
    const uint64_t *powers; /* of five, 128 bits each, from LEAST_POWER on */
    const uint8_t *at, *end;
    bool broken; /* whether something was found that no parser takes */
    int64_t fault; /* the verdict so far: the first field at fault, and its greatest fault */
    int64_t unfit; /* the same of values that a parser refuses, which count before all others */
} Reader;

enum { UNJUDGED = 1 << 20, GOOD = UNJUDGED * FAULTS };

typedef struct {
    int64_t *kept;     /* the records that are plain and good, by their place */
    int64_t *others;   /* all other ones, */
    int64_t *verdicts; /* with the verdict, and behind it the fault */
    int64_t kept_count, other_count;
} Outcome;

/* ---- Text ------------------------------------------------------------------------------------------------------- */

static bool is_utf8(const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        uint64_t eight = 0;
        if (end - at >= 8) {
            memcpy(&eight, at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        uint8_t first = *at++;
        if (first < 0x80) continue;
        int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        if (first < 0xC2 || first > 0xF4 || end - at < more) return false;
        /* No code in more bytes than it needs, no half of a pair, none beyond the last. */
        uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (*at < least || *at > most) return false;
        for (at++, more--; more > 0; at++, more--)
            if ((*at & 0xC0) != 0x80) return false;
    }
    return true;
}

/* ---- Faults of values ------------------------------------------------------------------------------------------- */

/* The first field is the verdict, and of its faults the greatest: the least of these numbers. */
static inline int64_t fault_of(const Node *node, enum fault fault) {
    return node->place < UNJUDGED ? node->place * FAULTS + (FAULTS - 1 - fault) : GOOD;
}

static inline void add_fault(Reader *reader, const Node *node, enum fault fault) {
    int64_t found = fault_of(node, fault);
    if (found < reader->fault) reader->fault = found;
}

static void judge_listed(Reader *reader, const Node *node, Value value) {
    for (int64_t each = 0; each < node->listed_count; each++) {
        Value one = node->listed[each];
        if (node->kind == INTEGER ? one.whole == value.whole : one.real == value.real) return;
    }
    add_fault(reader, node, NOT_ALLOWED);
}

static __attribute__((noinline)) void judge(Reader *reader, const Node *node, double value) {
    if (value >= node->least.real && value <= node->most.real) {
        if (node->listed_count) judge_listed(reader, node, (Value){.real = value});
    } else {
        add_fault(reader, node, isnan(value) ? NOT_FINITE : isinf(value) ? INFINITE : OUT_OF_RANGE);
    }
}

static __attribute__((noinline)) void judge_whole(Reader *reader, const Node *node, int64_t value) {
    if (value < node->least.whole || value > node->most.whole) add_fault(reader, node, OUT_OF_RANGE);
    else if (node->listed_count) judge_listed(reader, node, (Value){.whole = value});
}

/* Judge a list by its length. The elements of one that has not the right length do not matter: `before` is the verdict as
 * it was before them. */
static inline void judge_list(Reader *reader, const Node *node, int64_t before) {
    int64_t elements = node->offsets[node->rows] - node->offsets[node->rows - 1];
    if (node->elements < 0 || elements == node->elements) return;
    reader->fault = before;
    add_fault(reader, node, WRONG_SHAPE);
}

/* ---- Rows of a column ------------------------------------------------------------------------------------------- */

static void add_null(Reader *reader, Node *node) {
    int64_t row = node->rows++;
    node->valid[row >> 3] &= (uint8_t)~(1u << (row & 7));
    node->nulls++;
    if (node->present) add_fault(reader, node, MISSING);
    switch (node->kind) {
    case RECORD:
        for (int64_t each = 0; each < node->members; each++) add_null(reader, &reader->nodes[node->first + each]);
        break;
    case LIST: node->offsets[row + 1] = (int32_t)reader->nodes[node->first].rows; break;
    case TEXT: node->offsets[row + 1] = (int32_t)node->length; break;
    case FLOAT: ((float *)node->values)[row] = 0; break;
    case BOOL: ((uint8_t *)node->values)[row >> 3] &= (uint8_t)~(1u << (row & 7)); break;
    default: ((int64_t *)node->values)[row] = 0;
    }
}

static inline void add_bool(Node *node, bool value) {
    uint8_t *bits = (uint8_t *)node->values + (node->rows >> 3), bit = (uint8_t)(1u << (node->rows & 7));
    *bits = value ? *bits | bit : *bits & (uint8_t)~bit;
    node->rows++;
}

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t digits; /* all of them, without the point */
    int64_t power;   /* of ten */
    bool negative, whole, exact;
} Number;

typedef struct {
    int fraction_bits, least_exponent, infinite, least_power, largest_power, even_from, even_to;
} Binary;

static const Binary FLOAT32 = {23, -127, 0xFF, -64, 38, -17, 10};
static const Binary FLOAT64 = {52, -1023, 0x7FF, -342, 308, -4, 23};
enum { LEAST_POWER = -342 };

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
static const float FEW_TENS[] = {1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f, 1e6f, 1e7f, 1e8f, 1e9f, 1e10f};

/* Read digits, eight at a time where they are that many; `value` is taken modulo 2^64. */
static inline const uint8_t *read_digits(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    static const uint64_t tens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    uint64_t eight;
    while (end - at >= 8) {
        memcpy(&eight, at, 8);
        eight ^= 0x3030303030303030u;
        uint64_t others = ((eight + 0x7676767676767676u) | eight) & 0x8080808080808080u;
        int count = others ? __builtin_ctzll(others) / 8 : 8;
        if (count == 0) return at;
        eight <<= 8 * (8 - count); /* zeros before them: the first digit is in the lowest byte */
        eight = eight * 10 + (eight >> 8);
        eight = ((eight & 0x000000FF000000FFu) * 0x000F424000000064u +
                 ((eight >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u) >> 32;
        *value = *value * tens[count] + eight;
        at += count;
        if (count < 8) return at;
    }
    while (at < end && (uint8_t)(*at - '0') < 10) *value = *value * 10 + (*at++ - '0');
    return at;
}

/* Read a number by JSON's grammar; false where there is none. `exact`: whether the digits hold all of it. In line, a record
 * of which few fields are read costs a third less. */
static inline __attribute__((always_inline)) bool number(Reader *reader, Number *found) {
    const uint8_t *at = reader->at, *end = reader->end;
    uint64_t digits = 0;
    int64_t power = 0;
    found->negative = at < end && *at == '-';
    at += found->negative;
    const uint8_t *first = at;
    while (at < end && (uint8_t)(*at - '0') < 10) digits = digits * 10 + (*at++ - '0');
    int64_t count = at - first;
    if (count == 0 || (count > 1 && *first == '0')) return false;
    if (count == 1 && *first == '0') count = 0;
    found->whole = true;
    if (at < end && *at == '.') {
        const uint8_t *fraction = ++at;
        at = read_digits(at, end, &digits);
        power = fraction - at;
        if (power == 0) return false;
        if (count == 0) { /* zeros behind the point are no digits */
            while (fraction < at && *fraction == '0') fraction++;
        }
        count += at - fraction;
        found->whole = false;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        bool minus = false;
        int64_t exponent = 0;
        at++;
        if (at < end && (*at == '+' || *at == '-')) minus = *at++ == '-';
        const uint8_t *behind = at;
        while (at < end && (uint8_t)(*at - '0') < 10) {
            if (exponent < 100000) exponent = exponent * 10 + (*at - '0');
            at++;
        }
        if (at == behind || (!minus && exponent > LARGEST_EXPONENT)) return false; /* Arrow refuses even a zero then */
        power += minus ? -exponent : exponent;
        found->whole = false;
    }
    found->digits = digits;
    found->power = power;
    found->exact = count <= DIGITS;
    reader->at = at;
    return true;
}

/* The nearest binary number, ties to even, by the method of Lemire, "Number Parsing at a Gigabyte per Second" (2021);
 * false where it is not certain, or is no normal number. */
static bool nearest(const Reader *reader, const Number *given, const Binary *type, uint64_t *bits) {
    int64_t power = given->power;
    if (power < type->least_power || power > type->largest_power) return false;
    int zeros = __builtin_clzll(given->digits);
    uint64_t digits = given->digits << zeros;
    const uint64_t *five = reader->powers + 2 * (power - LEAST_POWER);
    unsigned __int128 product = (unsigned __int128)digits * five[0];
    uint64_t high = (uint64_t)(product >> 64), low = (uint64_t)product;
    uint64_t undecided = UINT64_MAX >> (type->fraction_bits + 3);
    if ((high & undecided) == undecided) {
        uint64_t more = (uint64_t)(((unsigned __int128)digits * five[1]) >> 64);
        low += more;
        high += more > low;
        if (low == UINT64_MAX && (power < -27 || power > 55)) return false;
    }
    int top = (int)(high >> 63), shift = top + 64 - type->fraction_bits - 3;
    uint64_t fraction = high >> shift;
    int64_t exponent = (((152170 + 65536) * power) >> 16) + 63 + top - zeros - type->least_exponent;
    if (exponent <= 0) return false;
    if (low <= 1 && power >= type->even_from && power <= type->even_to && (fraction & 3) == 1 && fraction << shift == high)
        fraction &= ~(uint64_t)1; /* a tie */
    fraction += fraction & 1;
    fraction >>= 1;
    if (fraction >> (type->fraction_bits + 1)) {
        fraction = (uint64_t)1 << type->fraction_bits;
        exponent++;
    }
    if (exponent >= type->infinite) return false;
    *bits = (fraction & (((uint64_t)1 << type->fraction_bits) - 1)) | (uint64_t)exponent << type->fraction_bits;
    return true;
}

static bool to_float(const Reader *reader, const Number *given, float *found) {
    float value;
    if (given->digits == 0) {
        value = 0;
    } else if (given->digits <= 1u << 24 && given->power >= -10 && given->power <= 10) { /* both exact: rounded once */
        value = (float)given->digits;
        value = given->power < 0 ? value / FEW_TENS[-given->power] : value * FEW_TENS[given->power];
    } else {
        uint64_t bits;
        if (!nearest(reader, given, &FLOAT32, &bits)) return false;
        uint32_t word = (uint32_t)bits;
        memcpy(&value, &word, sizeof value);
    }
    *found = given->negative ? -value : value;
    return true;
}

static bool to_double(const Reader *reader, const Number *given, double *found) {
    double value;
    if (given->digits == 0) {
        value = 0;
    } else if (given->digits <= (uint64_t)1 << 53 && given->power >= -22 && given->power <= 22) {
        value = (double)given->digits;
        value = given->power < 0 ? value / TENS[-given->power] : value * TENS[given->power];
    } else {
        uint64_t bits;
        if (!nearest(reader, given, &FLOAT64, &bits)) return false;
        memcpy(&value, &bits, sizeof value);
    }
    *found = given->negative ? -value : value;
    return true;
}

/* Read a number of few digits and without an exponent, which is most of them: one division gives it, rounded once. */
static inline bool few_digits(Reader *reader, float *found) {
    const uint8_t *at = reader->at, *end = reader->end;
    bool negative = at < end && *at == '-';
    at += negative;
    const uint8_t *first = at;
    uint64_t digits = 0;
    while (at < end && (uint8_t)(*at - '0') < 10) digits = digits * 10 + (*at++ - '0');
    if (at == first || (*first == '0' && at > first + 1)) return false;
    int64_t power = 0;
    if (at < end && *at == '.') {
        const uint8_t *fraction = ++at;
        at = read_digits(at, end, &digits);
        power = at - fraction;
        if (power == 0 || power > 10) return false;
    }
    if (at - first > DIGITS || digits > 1u << 24 || (at < end && (*at | 0x20) == 'e')) return false;
    float value = (float)digits / FEW_TENS[power];
    *found = negative ? -value : value;
    reader->at = at;
    return true;
}

static bool read_number(Reader *reader, Node *node) {
    if (node->kind == FLOAT && few_digits(reader, (float *)node->values + node->rows)) {
        if (node->ruled) judge(reader, node, ((float *)node->values)[node->rows]);
        node->rows++;
        return true;
    }
    Number found;
    if (!number(reader, &found) || !found.exact) return false;
    int64_t row = node->rows;
    if (node->kind == FLOAT) {
        if (!to_float(reader, &found, (float *)node->values + row)) return false;
        if (node->ruled) judge(reader, node, ((float *)node->values)[row]);
    } else if (node->kind == DOUBLE) {
        if (!to_double(reader, &found, (double *)node->values + row)) return false;
        if (node->ruled) judge(reader, node, ((double *)node->values)[row]);
    } else {
        if (!found.whole || found.digits > (uint64_t)INT64_MAX) return false;
        int64_t value = found.negative ? -(int64_t)found.digits : (int64_t)found.digits;
        ((int64_t *)node->values)[row] = value;
        if (node->ruled) judge_whole(reader, node, value);
    }
    node->rows++;
    return true;
}

/* Read one of the words for what is no finite number, which Arrow reads as floats; `words` ends with a NULL. */
static bool read_not_finite(Reader *reader, Node *node, const char *const *words) {
    if (node->kind != FLOAT && node->kind != DOUBLE) return false;
    for (; *words; words++) {
        size_t length = strlen(*words);
        if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, *words, length) != 0) continue;
        double value = **words == '-' ? -INFINITY : (*words)[0] == 'I' || (*words)[0] == 'i' ? INFINITY : NAN;
        if (node->kind == FLOAT) ((float *)node->values)[node->rows++] = (float)value;
        else ((double *)node->values)[node->rows++] = value;
        judge(reader, node, value);
        reader->at += length;
        return true;
    }
    return false;
}

/* ---- Records ---------------------------------------------------------------------------------------------------- */

static inline void set_marks(const Node *nodes, int64_t count, Mark *marks) {
    for (int64_t each = 0; each < count; each++) marks[each] = (Mark){nodes[each].rows, nodes[each].nulls, nodes[each].length};
}

/* Note what a record has come to. */
static inline void settle(Outcome *outcome, int64_t record, enum verdict verdict, int64_t fault) {
    if (verdict == PLAIN && fault >= GOOD) {
        outcome->kept[outcome->kept_count++] = record;
        return;
    }
    outcome->others[outcome->other_count] = record;
    outcome->verdicts[outcome->other_count++] = verdict == PLAIN ? FAULTY + FAULTS * fault : verdict;
}

static void go_back(Node *nodes, int64_t count, const Mark *marks) {
    for (int64_t each = 0; each < count; each++) {
        Node *node = &nodes[each];
        if (node->nulls > marks[each].nulls) {
            for (int64_t row = marks[each].rows; row < node->rows; row++) node->valid[row >> 3] |= (uint8_t)(1u << (row & 7));
        }
        node->rows = marks[each].rows;
        node->nulls = marks[each].nulls;
        node->length = marks[each].length;
    }
}
