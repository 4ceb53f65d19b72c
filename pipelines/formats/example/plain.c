/* Which Examples hold a list of another kind than is asked for, by one walk over the keys of each.
 *
 * What it finds are hints: such a record is parsed apart, and nothing is refused by its word. A record that is laid out in
 * an unusual way, as with a value before its key, is not told.
 */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { INSIDE = 0x0A, VALUE = 0x12, LONGEST = 63 }; /* the tags of what is inside, and of a value behind its key */

typedef struct {
    const uint8_t *names, *tags; /* the tag of the list that is asked for, of each */
    const int64_t *ends;         /* where each name ends */
    int64_t count;
} Asked;

/* Read a field of bytes with this tag: where it begins, and its end; NULL where there is none that is whole. */
static const uint8_t *field(const uint8_t *at, const uint8_t *end, uint8_t tag, const uint8_t **ends) {
    uint64_t length = 0;
    if (at == end || *at++ != tag) return NULL;
    for (int shift = 0;; shift += 7) {
        if (at == end || shift > LONGEST) return NULL;
        length |= (uint64_t)(*at & 0x7F) << shift;
        if (*at++ < 0x80) break;
    }
    if (length > (uint64_t)(end - at)) return NULL;
    *ends = at + length;
    return at;
}

/* Return the place of a key among the names; as a rule it is the one behind that of the key before. */
static int64_t place_of(const Asked *asked, const uint8_t *key, int64_t length, int64_t first) {
    for (int64_t step = 0, place = first; step < asked->count; step++, place++) {
        if (place == asked->count) place = 0;
        int64_t begin = place ? asked->ends[place - 1] : 0;
        if (asked->ends[place] - begin == length && memcmp(asked->names + begin, key, (size_t)length) == 0) return place;
    }
    return -1;
}

static bool is_unlike(const uint8_t *at, const uint8_t *end, const Asked *asked) {
    int64_t next = 0;
    at = field(at, end, INSIDE, &end);
    while (at != NULL && at < end) {
        const uint8_t *inside_end, *key_end, *value_end, *inside = field(at, end, INSIDE, &inside_end);
        if (inside == NULL) return false;
        at = inside_end;
        const uint8_t *key = field(inside, inside_end, INSIDE, &key_end);
        const uint8_t *value = key ? field(key_end, inside_end, VALUE, &value_end) : NULL;
        if (value == NULL || value == value_end) continue;
        int64_t place = place_of(asked, key, key_end - key, next < asked->count ? next : 0);
        if (place < 0) continue;
        if (asked->tags[place] != *value) return true;
        next = place + 1;
    }
    return false;
}

/* Set the byte of each record that holds such a list. */
void find_unlike(const uint8_t *bytes, const int64_t *begins, const int64_t *lengths, int64_t records, const uint8_t *names,
                 const uint8_t *tags, const int64_t *ends, int64_t count, uint8_t *unlike) {
    Asked asked = {names, tags, ends, count};
    for (int64_t record = 0; record < records; record++) {
        const uint8_t *begin = bytes + begins[record];
        unlike[record] = is_unlike(begin, begin + lengths[record], &asked);
    }
}
