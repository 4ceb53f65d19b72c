/* Plain CSV records into columns: one pass over the bytes, for the columns of a schema alone.
 *
 * A record that is plain has as many columns as the layout, quotes around whole columns only and none inside, no line
 * break or other control character but tabs, and in each column that is asked for nothing or a value of its type,
 * without blanks around a number; NaN and the infinities are floats in the usual spellings.
 */

#include "../shared/plain_columns.h"

typedef struct {
    const int64_t *nodes; /* of each column, or -1 for one that nobody asks for */
    int64_t count;
    uint8_t delimiter;
    int16_t quote, lists; /* -1: none */
} Layout;

/* Go on to the end of a column's text; NULL where it is not plain. */
static inline const uint8_t *text_end(const uint8_t *at, const uint8_t *end, const Layout *layout, bool quoted) {
    for (; at < end && *at != (quoted ? layout->quote : layout->delimiter); at++)
        if (*at == layout->quote || (*at < 0x20 && *at != '\t')) return NULL;
    return at;
}

static bool is_one_of(const uint8_t *at, size_t length, const char *const *words) {
    for (; *words; words++)
        if (strlen(*words) == length && memcmp(at, *words, length) == 0) return true;
    return false;
}

/* Read one value up to its end. */
static bool read_value(Reader *reader, Node *node, const uint8_t *end) {
    static const char *const yes[] = {"true", "True", "TRUE", "1", NULL}, *const no[] = {"false", "False", "FALSE", "0", NULL};
    static const char *const words[] = {"nan", "NaN", "infinity", "Infinity", "inf", "-infinity", "-Infinity", "-inf", NULL};
    size_t length = (size_t)(end - reader->at);
    if (node->kind == TEXT) {
        memcpy((uint8_t *)node->values + node->length, reader->at, length);
        node->length += (int64_t)length;
        node->offsets[++node->rows] = (int32_t)node->length;
        return true;
    }
    if (node->kind == BOOL) {
        bool value = is_one_of(reader->at, length, yes);
        if (!value && !is_one_of(reader->at, length, no)) return false;
        add_bool(node, value);
        return true;
    }
    reader->end = end;
    bool named = length > 1 && (*reader->at > '9' || (*reader->at == '-' && reader->at[1] > '9'));
    return (named ? read_not_finite(reader, node, words) : read_number(reader, node)) && reader->at == end;
}

/* Read a column up to its end. Nothing means that the field is missing; nothing in quotes is a text, and no list. */
static bool read_column(Reader *reader, Node *node, const uint8_t *end, bool quoted, const Layout *layout) {
    if (reader->at == end && (!quoted || node->kind == LIST)) {
        add_null(reader, node);
        return true;
    }
    if (node->kind != LIST) return read_value(reader, node, end);
    Node *element = &reader->nodes[node->first];
    int64_t before = reader->fault;
    for (;; reader->at++) {
        const uint8_t *behind = reader->at;
        while (behind < end && *behind != layout->lists) behind++;
        if (!read_value(reader, element, behind)) return false;
        reader->at = behind;
        if (behind == end) break;
    }
    node->offsets[++node->rows] = (int32_t)element->rows;
    judge_list(reader, node, before);
    return true;
}

static bool read_row(Reader *reader, const uint8_t *end, const Layout *layout) {
    static const uint8_t byte_order_mark[] = {0xEF, 0xBB, 0xBF};
    if (reader->at == end || (end - reader->at >= 3 && memcmp(reader->at, byte_order_mark, 3) == 0)) return false;
    for (int64_t column = 0; column < layout->count; column++) {
        bool quoted = reader->at < end && *reader->at == layout->quote;
        reader->at += quoted;
        const uint8_t *text = text_end(reader->at, end, layout, quoted);
        if (text == NULL || (quoted && text == end)) return false;
        const uint8_t *behind = text + quoted;
        if ((behind == end) != (column == layout->count - 1) || (behind < end && *behind != layout->delimiter)) return false;
        int64_t node = layout->nodes[column];
        if (node >= 0 && !read_column(reader, &reader->nodes[node], text, quoted, layout)) return false;
        reader->at = behind + 1;
    }
    return true;
}

/* Read the plain ones of some records, each of which ends where the next begins, and note the verdict on each: what is
 * not plain is left. */
void read_csv(const uint8_t *bytes, const int64_t *begins, int64_t records, Node *nodes, int64_t count, Mark *marks,
              const uint64_t *powers, Outcome *outcome, const int64_t *columns, int64_t width, int64_t delimiter,
              int64_t quote, int64_t lists) {
    Layout layout = {columns, width, (uint8_t)delimiter, (int16_t)quote, (int16_t)lists};
    for (int64_t record = 0; record < records; record++) {
        const uint8_t *begin = bytes + begins[record], *end = bytes + begins[record + 1];
        Reader reader = {nodes, powers, begin, end, false, GOOD, GOOD};
        set_marks(nodes, count, marks);
        bool plain = is_utf8(begin, end) && read_row(&reader, end, &layout);
        settle(outcome, record, plain ? PLAIN : LEFT, reader.fault);
        if (!plain || reader.fault < GOOD) go_back(nodes, count, marks);
    }
}
