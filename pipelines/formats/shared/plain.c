/* What compiled code of several formats needs beside the columns. */

#include <stdint.h>

/* Count the bytes of a text that are one of some. */
int64_t count_bytes(const uint8_t *text, int64_t length, const uint8_t *wanted, int64_t count) {
    enum { PIECE = 128 }; /* few enough for a count of 8 bits, which many of fit beside each other */
    int64_t found = 0;
    for (int64_t each = 0; each < count; each++) {
        uint8_t byte = wanted[each];
        const uint8_t *at = text, *end = text + length;
        for (; end - at >= PIECE; at += PIECE) {
            uint8_t here = 0;
            for (int64_t place = 0; place < PIECE; place++) here += at[place] == byte;
            found += here;
        }
        for (; at < end; at++) found += *at == byte;
    }
    return found;
}
