/* Plain JSON records into columns: one pass over the bytes, for the fields of a schema alone.
 *
 * A record that is plain is valid JSON, one object, whose asked values are of the types that the schema names; NaN and the
 * infinities are floats, as Python writes them. A field that stands twice, a key with a backslash, NaN where nobody asks,
 * deep nesting: none of them is plain. One whose values are of other types is refused, where a parser certainly does.
 */

#include "../shared/plain_columns.h"

enum { DEEPEST = 64 };

/* ---- Text ------------------------------------------------------------------------------------------------------- */

/* Go on to the first quote, backslash or control character. */
static inline const uint8_t *special(const uint8_t *at, const uint8_t *end) {
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    for (; end - at >= 8; at += 8) {
        uint64_t eight, quote, slash;
        memcpy(&eight, at, 8);
        quote = eight ^ ones * '"';
        slash = eight ^ ones * '\\';
        uint64_t some = ((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((eight - ones * 0x20) & ~eight);
        if (some & tops) break;
    }
    while (at < end && *at != '"' && *at != '\\' && *at >= 0x20) at++;
    return at;
}

static int64_t four_hex(const uint8_t *at, const uint8_t *end) {
    if (end - at < 4) return -1;
    int64_t code = 0;
    for (int each = 0; each < 4; each++) {
        uint8_t digit = at[each];
        if ((uint8_t)(digit - '0') < 10) digit -= '0';
        else if ((uint8_t)((digit | 0x20) - 'a') < 6) digit = (uint8_t)((digit | 0x20) - 'a' + 10);
        else return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* Read what follows a backslash into `to`, where that is given; return the bytes, -1 for what is not plain. */
static int escape(Reader *reader, uint8_t *to) {
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (reader->at == reader->end) return -1;
    uint8_t name = *reader->at++;
    if (name != 'u') {
        const char *place = name ? strchr(names, name) : NULL;
        if (place == NULL) return -1;
        if (to) *to = (uint8_t)meant[place - names];
        return 1;
    }
    int64_t code = four_hex(reader->at, reader->end);
    reader->at += 4;
    if (code <= 0 || (code >= 0xDC00 && code < 0xE000)) return -1;
    if (code >= 0xD800 && code < 0xDC00) { /* half of a pair */
        if (reader->end - reader->at < 6 || reader->at[0] != '\\' || reader->at[1] != 'u') return -1;
        int64_t low = four_hex(reader->at + 2, reader->end);
        reader->at += 6;
        if (low < 0xDC00 || low >= 0xE000) return -1;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    uint8_t bytes[4];
    int count;
    if (code < 0x80) {
        bytes[0] = (uint8_t)code;
        count = 1;
    } else if (code < 0x800) {
        bytes[0] = (uint8_t)(0xC0 | code >> 6);
        count = 2;
    } else if (code < 0x10000) {
        bytes[0] = (uint8_t)(0xE0 | code >> 12);
        count = 3;
    } else {
        bytes[0] = (uint8_t)(0xF0 | code >> 18);
        count = 4;
    }
    for (int each = 1; each < count; each++) bytes[each] = (uint8_t)(0x80 | (code >> 6 * (count - 1 - each) & 0x3F));
    if (to) memcpy(to, bytes, (size_t)count);
    return count;
}

/* Read a string behind its opening quote into `to`, where that is given; return its bytes, -1 for what is not plain. */
static int64_t text(Reader *reader, uint8_t *to) {
    int64_t length = 0;
    for (;;) {
        const uint8_t *begin = reader->at, *at = special(begin, reader->end);
        if (to) memcpy(to + length, begin, (size_t)(at - begin));
        length += at - begin;
        if (at == reader->end || *at < 0x20) {
            reader->broken = true;
            return -1;
        }
        reader->at = at + 1;
        if (*at == '"') return length;
        int count = escape(reader, to ? to + length : NULL);
        if (count < 0) return -1;
        length += count;
    }
}

/* ---- Values ----------------------------------------------------------------------------------------------------- */

static inline bool is_space(uint8_t byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static inline void spaces(Reader *reader) {
    while (reader->at < reader->end && is_space(*reader->at)) reader->at++;
}

static inline bool token(Reader *reader, uint8_t wanted) {
    spaces(reader);
    if (reader->at == reader->end || *reader->at != wanted) return false;
    reader->at++;
    return true;
}

static bool word(Reader *reader, const char *wanted) {
    int64_t length = (int64_t)strlen(wanted);
    if (reader->end - reader->at < length || memcmp(reader->at, wanted, (size_t)length) != 0) return false;
    reader->at += length;
    return true;
}

/* Pass over a value that nobody asks for. */
static bool skip(Reader *reader, int depth) {
    Number ignored;
    spaces(reader);
    if (reader->at == reader->end || depth > DEEPEST) return false;
    switch (*reader->at) {
    case '"': reader->at++; return text(reader, NULL) >= 0;
    case 't': return word(reader, "true");
    case 'f': return word(reader, "false");
    case 'n': return word(reader, "null");
    case '[':
        reader->at++;
        if (token(reader, ']')) return true;
        do {
            if (!skip(reader, depth + 1)) return false;
        } while (token(reader, ','));
        return token(reader, ']');
    case '{':
        reader->at++;
        if (token(reader, '}')) return true;
        do {
            if (!token(reader, '"') || text(reader, NULL) < 0 || !token(reader, ':') || !skip(reader, depth + 1))
                return false;
        } while (token(reader, ','));
        return token(reader, '}');
    default: return number(reader, &ignored);
    }
}

/* Read a key behind its opening quote: the node that it names, -1 for one that nobody asks for, -2 if not plain. */
static int64_t key(Reader *reader, Node *node, int64_t place) {
    Key *before = place < REMEMBERED ? &node->keys[place] : NULL;
    if (before && before->length && reader->end - reader->at >= before->length &&
        memcmp(reader->at, before->bytes, (size_t)before->length) == 0) {
        reader->at += before->length;
        return before->member;
    }
    const uint8_t *begin = reader->at, *at = special(begin, reader->end);
    if (at == reader->end || *at != '"') {
        reader->broken = at == reader->end || *at < 0x20;
        return -2;
    }
    int64_t length = at + 1 - begin, member = -1;
    for (int64_t each = node->first; each < node->first + node->members; each++) {
        Node *one = &reader->nodes[each];
        if (one->name_length == length && memcmp(one->name, begin, (size_t)length) == 0) {
            member = each;
            break;
        }
    }
    if (before) *before = (Key){begin, length, member};
    reader->at = at + 1;
    return member;
}

static bool read(Reader *reader, Node *node);

/* Read an object behind its brace. */
static bool read_record(Reader *reader, Node *node) {
    int64_t object = ++node->objects, place = 0, seen = 0;
    if (!token(reader, '}')) {
        do {
            if (!token(reader, '"')) return false;
            int64_t member = key(reader, node, place++);
            if (member < -1 || !token(reader, ':')) return false;
            if (member < 0) {
                if (!skip(reader, 0)) return false;
                continue;
            }
            Node *one = &reader->nodes[member];
            if (one->seen == object) return false; /* twice */
            one->seen = object;
            seen++;
            if (!read(reader, one)) return false;
        } while (token(reader, ','));
        if (!token(reader, '}')) return false;
    }
    if (seen < node->members) {
        for (int64_t each = node->first; each < node->first + node->members; each++)
            if (reader->nodes[each].seen != object) add_null(reader, &reader->nodes[each]);
    }
    node->rows++;
    return true;
}

static bool read_list(Reader *reader, Node *node) {
    Node *element = &reader->nodes[node->first];
    int64_t before = reader->fault;
    if (!token(reader, ']')) {
        do {
            spaces(reader);
            bool quick = element->kind == FLOAT && few_digits(reader, (float *)element->values + element->rows);
            if (quick && element->ruled) judge(reader, element, ((float *)element->values)[element->rows]);
            element->rows += quick;
            if (!quick && !read(reader, element)) return false;
        } while (token(reader, ','));
        if (!token(reader, ']')) return false;
    }
    node->offsets[++node->rows] = (int32_t)element->rows;
    judge_list(reader, node, before);
    return true;
}

static bool read_text(Reader *reader, Node *node) {
    int64_t length = text(reader, (uint8_t *)node->values + node->length);
    if (length < 0) return false;
    node->length += length;
    node->offsets[node->rows + 1] = (int32_t)node->length;
    node->rows++;
    return true;
}

static bool read_bool(Reader *reader, Node *node) {
    bool value = *reader->at == 't';
    if (!word(reader, value ? "true" : "false")) return false;
    add_bool(node, value);
    return true;
}

static bool read_numeral(Reader *reader, Node *node, uint8_t first) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity", NULL};
    bool named = first == 'N' || first == 'I' || (first == '-' && reader->end - reader->at > 1 && reader->at[1] == 'I');
    return named ? read_not_finite(reader, node, words) : read_number(reader, node);
}

/* Note why a parser refuses a value, and pass over it; false where that is not certain. `faults.py` has the same rules. */
static bool refuse(Reader *reader, const Node *node, const uint8_t *begin) {
    const Node *leaf = node;
    while (leaf->kind == LIST) leaf = &reader->nodes[leaf->first];
    bool in_list = leaf != node, text = *begin == '"', truth = *begin == 't' || *begin == 'f';
    bool numeral = *begin == '-' || (uint8_t)(*begin - '0') < 10, list = *begin == '[', record = *begin == '{';
    bool same = leaf->kind == TEXT ? text : leaf->kind == BOOL ? truth : numeral;
    if (node->place >= UNJUDGED || !(text || truth || numeral || list || record) || (list && in_list)) return false;
    reader->at = begin;
    if (same && leaf->kind == INTEGER) {
        Number found;
        if (in_list || !number(reader, &found) || found.whole) return false; /* it may be too large */
        same = false;
    } else if (!skip(reader, 0) || (same && !in_list)) {
        return false;
    }
    if (node->place < reader->unfit / FAULTS) reader->unfit = fault_of(node, list || same ? WRONG_SHAPE : WRONG_TYPE);
    return true;
}

static bool read_any(Reader *reader, Node *node, uint8_t first) {
    switch (node->kind) {
    case RECORD: reader->at++; return first == '{' && read_record(reader, node);
    case LIST: reader->at++; return first == '[' && read_list(reader, node);
    case TEXT: reader->at++; return first == '"' && read_text(reader, node);
    case BOOL: return read_bool(reader, node);
    default: return read_numeral(reader, node, first);
    }
}

static bool read(Reader *reader, Node *node) {
    spaces(reader);
    if (reader->at == reader->end) return false;
    const uint8_t *begin = reader->at;
    uint8_t first = *begin;
    if (first == 'n') {
        if (!word(reader, "null")) return false;
        add_null(reader, node);
        return true;
    }
    return read_any(reader, node, first) || refuse(reader, node, begin);
}

static bool read_object(Reader *reader, Node *nodes) {
    if (!token(reader, '{') || !read_record(reader, nodes)) return false;
    spaces(reader);
    reader->broken = reader->at != reader->end; /* a second value, or none at all, behind the object */
    return !reader->broken;
}

/* Return whether a record that is not plain is certainly faulty. What is not one object in its frame is; `framing.py` has
 * the same rule. */
static enum verdict verdict_on(const Reader *reader, const uint8_t *begin) {
    Reader inside = {.at = begin, .end = reader->end};
    spaces(&inside);
    if (inside.at == inside.end) return EMPTY;
    while (is_space(inside.end[-1])) inside.end--;
    bool framed = *inside.at == '{' && inside.end[-1] == '}';
    bool faulty = reader->broken || !framed || memchr(inside.at, 0, (size_t)(inside.end - inside.at));
    return faulty ? MALFORMED : LEFT;
}

/* Read the plain ones of some records, each of which ends where the next begins, into the columns of the first node, and
 * note the verdict on each. */
void read_json(const uint8_t *bytes, const int64_t *begins, int64_t records, Node *nodes, int64_t count, Mark *marks,
               const uint64_t *powers, Outcome *outcome) {
    for (int64_t record = 0; record < records; record++) {
        const uint8_t *begin = bytes + begins[record], *end = bytes + begins[record + 1];
        Reader reader = {nodes, powers, begin, end, !is_utf8(begin, end), GOOD, GOOD};
        set_marks(nodes, count, marks);
        bool plain = !reader.broken && read_object(&reader, nodes);
        int64_t fault = reader.unfit < GOOD ? reader.unfit : reader.fault;
        settle(outcome, record, plain ? PLAIN : verdict_on(&reader, begin), fault);
        if (!plain || fault < GOOD) go_back(nodes, count, marks);
    }
}
