/* checksum.c: XXH64 over memory and over a file. */
#include "checksum.h"
#include "file.h"

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

static uint64_t checksum_turn(uint64_t x, int by) { return x << by | x >> (64 - by); }
static uint64_t checksum_lane(uint64_t acc, uint64_t word) { return checksum_turn(acc + word * P2, 31) * P1; }
static uint64_t checksum_word8(const unsigned char *p) {
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? w : __builtin_bswap64(w);
}
static uint64_t checksum_word4(const unsigned char *p) {
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? w : __builtin_bswap32(w);
}

uint64_t xxh64(const void *data, size_t n) {
    const unsigned char *p = data, *end = p + n;
    uint64_t h = P5;
    if (n >= 32) {
        uint64_t v[4] = {P1 + P2, P2, 0, 0 - P1};
        for (; end - p >= 32; p += 32)
            for (int i = 0; i < 4; i++) v[i] = checksum_lane(v[i], checksum_word8(p + 8 * i));
        h = checksum_turn(v[0], 1) + checksum_turn(v[1], 7) + checksum_turn(v[2], 12) + checksum_turn(v[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ checksum_lane(0, v[i])) * P1 + P4;
    }
    h += n;
    for (; end - p >= 8; p += 8) h = checksum_turn(h ^ checksum_lane(0, checksum_word8(p)), 27) * P1 + P4;
    if (end - p >= 4) h = checksum_turn(h ^ checksum_word4(p) * P1, 23) * P2 + P3, p += 4;
    for (; p < end; p++) h = checksum_turn(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

bool file_sum(const char *path, FileSum *s, Err *e) {
    FileMap m;
    if (!file_map(&m, path, e)) return false;
    *s = (FileSum){m.n, xxh64(m.p, m.n)};
    file_unmap(&m);
    return true;
}
