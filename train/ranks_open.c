#include "comm_mpi.h"
#include "comm_shm.h"
#include "ranks.h"
#include "store.h"
#include <unistd.h>

const char *comm_by_name(CommBy b) {
    static const char *const names[] = {"auto", "shm", "mpi"};
    return names[b];
}

/* Ranks of one machine that have no memory from a common parent meet by a local name; rank 0 makes the memory. */
static bool shm_met(const Ranks *r, double deadline, uint64_t config, Comm **out, Err *e) {
    StoreKey key = {.rank = r->rank, .world = r->world, .restart = r->restart, .config = config};
    char job[256];
    /* MPICH tells no name of the job; its ranks on a machine have one parent. */
    snprintf(job, sizeof job, "%s %s %d %d", ranks_from_name(r->from), r->job, r->port, *r->job ? 0 : (int)getppid());
    key.job = rng_name(0, job);
    int fd = -1;
    if (r->rank == 0 && !comm_shm_make(r->world, &fd, e)) return false;
    bool ok = store_share(&key, (StoreAt){.local = true}, deadline, NULL, 0, &fd, e);
    if (ok) return comm_shm_open(fd, r->rank, r->world, deadline, out, e);
    if (fd >= 0) close(fd);
    return false;
}

bool ranks_open(const Ranks *r, CommBy by, double deadline, uint64_t config, Comm **out, Err *e) {
    *out = NULL;
    if (r->world == 1) return true;
    if (deadline <= 0) deadline = r->deadline > 0 ? r->deadline : COMM_DEADLINE;
    bool one_host = r->locals == r->world;
    if (by == COMM_AUTO) by = r->from == RANKS_OPENMPI || !one_host ? COMM_MPI : COMM_SHM;
    if (by == COMM_SHM) {
        if (!one_host)
            return err_input(e, "comm: shm: %d ranks, of which %d are known to be on this host: over several it is mpi",
                             r->world, r->locals);
        if (r->from == RANKS_LAUNCH) return comm_shm_open(r->fd, r->rank, r->world, deadline, out, e);
        return shm_met(r, deadline, config, out, e);
    }
    if (r->from != RANKS_OPENMPI && r->from != RANKS_SLURM)
        return err_input(e, "comm: mpi: %s does not start ranks of MPI: use mpirun, or srun --mpi=pmix",
                         ranks_from_name(r->from));
    return comm_mpi_open(r->rank, r->world, r->local, r->locals, deadline, out, e);
}
