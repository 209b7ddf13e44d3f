/* rendezvous_file.c: any bytes as the file by which ranks meet: what is taken has all that it says it has.
 * Sources: train/comm/rendezvous_file.[ch] */
#include "fuzz.h"
#include "train/comm/rendezvous_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    RendezvousNote x = {0};
    uint8_t *whole = malloc(n + 1); /* so that a byte behind the end is noticed */
    if (!whole) return 0;
    memcpy(whole, p, n);
    for (int summed = 0; summed < 2; summed++) {
        /* Once as it is; then with the right sum, which bytes by chance do not have. */
        if (summed && n >= 8) {
            uint64_t h = rendezvous_file_sum(whole, n - 8);
            for (int i = 0; i < 8; i++) whole[n - 8 + (size_t)i] = (uint8_t)(h >> 8 * i);
        }
        if (!rendezvous_file_read(whole, n, &x)) continue;
        CHECK(x.key.rank >= 0 && x.key.rank < x.key.world && x.key.world > 1 && x.key.restart >= 0, "rank %d of %d",
              x.key.rank, x.key.world);
        CHECK(n == rendezvous_file_size(x.key.rank, x.key.world, x.n) && x.n <= RENDEZVOUS_BYTES_MAX, "%zu bytes", n);
        if (x.key.rank) continue;
        CHECK(x.numbers >= whole && x.bytes == x.numbers + 8 * (size_t)(x.key.world - 1) &&
                  x.bytes + x.n + 8 == whole + n,
              "%zu bytes", n);
    }
    free(whole);
    return 0;
}
