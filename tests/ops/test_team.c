/* test_team.c: what a region sees of its team, whether or not the linker hands it to ops/team.c. */
#include <criterion/criterion.h>
#include <omp.h>

/* Thread numbers and counts, and elements of a loop, in a region of one thread; `within`: in every thread of two. */
enum { N = 64 };
static int alone(int seen[N]) {
    int wrong = 0;
    const bool never = omp_get_max_threads() < 0; /* not known when this is compiled */
#pragma omp parallel if (never) num_threads(2)
    {
        wrong += omp_get_thread_num() != 0 || omp_get_num_threads() != 1;
#pragma omp barrier
#pragma omp for schedule(static)
        for (int i = 0; i < N; i++) seen[i]++;
#pragma omp for schedule(dynamic)
        for (int i = 0; i < N; i++) seen[i]++;
    }
    return wrong;
}
Test(team, a_region_of_one_thread_has_all_of_the_work) {
    int once[N] = {0}, each[2][N] = {{0}}, wrong = alone(once), teams = 0, within = 0;
    cr_assert(wrong == 0, "another thread than number 0 of 1");
    for (int i = 0; i < N; i++) cr_assert(once[i] == 2, "element %d: %d times, expected 2", i, once[i]);
    omp_set_dynamic(0);
#pragma omp parallel num_threads(2) reduction(+ : teams, within)
    {
        teams += omp_get_num_threads() == 2;
        within += alone(each[omp_get_thread_num()]);
    }
    cr_assert(teams == 2, "no team of two");
    cr_assert(within == 0, "in a team of two a region of one thread has %d wrong numbers", within);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < N; i++)
            cr_assert(each[t][i] == 2, "thread %d, element %d: %d times, expected 2", t, i, each[t][i]);
}
