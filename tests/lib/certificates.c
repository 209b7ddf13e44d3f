/* certificates.c: keeps the test runners from reading certificates.
 *
 * Criterion compares texts by libgit2, which reads all of the system's certificates when it is loaded, in the process
 * of every test: 4 of 20 ms. No test has a use for them. The symbols of a program come before those of its libraries;
 * where libgit2 reads certificates by another library, they are without effect. */
int mbedtls_x509_crt_parse_file(void *chain, const char *path);
int mbedtls_x509_crt_parse_path(void *chain, const char *path);

int mbedtls_x509_crt_parse_file(void *chain, const char *path) {
    (void)chain, (void)path;
    return 0;
}
int mbedtls_x509_crt_parse_path(void *chain, const char *path) {
    (void)chain, (void)path;
    return 0;
}
