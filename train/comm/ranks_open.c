#include "comm_mpi.h"
#include "comm_nccl.h"
#include "comm_shm.h"
#include "ranks.h"
#include "rendezvous.h"
#include "rendezvous_file.h"
#include <unistd.h>

const char *comm_by_name(CommBy b) {
    static const char *const names[] = {"auto", "shm", "mpi", "nccl"};
    return names[b];
}

static RendezvousKey ranks_open_key_of(const Ranks *r, uint64_t config, bool by_parent) {
    RendezvousKey key = {.rank = r->rank, .world = r->world, .restart = r->restart, .config = config};
    char job[256];
    /* MPICH sets no name of the job; its ranks on a machine have one parent. */
    snprintf(job, sizeof job, "%s %s %d %d", ranks_from_name(r->from), r->job, r->port,
             *r->job || !by_parent ? 0 : (int)getppid());
    key.job = rng_name(0, job);
    return key;
}

/* Ranks of one machine that have no memory from a common parent meet by a local name; rank 0 makes the memory. */
static bool shm_met(const Ranks *r, double deadline, uint64_t config, Comm **out, Err *e) {
    RendezvousKey key = ranks_open_key_of(r, config, true);
    int fd = -1;
    if (r->rank == 0 && !comm_shm_make(r->world, &fd, e)) return false;
    bool ok = rendezvous_share(&key, (RendezvousAt){.local = true}, deadline, NULL, 0, &fd, e);
    if (ok) return comm_shm_open(fd, r->rank, r->world, deadline, out, e);
    if (fd >= 0) close(fd);
    return false;
}

/* ---- the name of an NCCL communicator, from rank 0 to all -----------------------------------------------------------
 */

typedef struct {
    const Ranks *r;
    const RanksHow *how;
    double deadline;
    bool one_host;
} Meeting;

/* MPI is there for this alone, and stays until the process ends. */
static bool by_mpi(const Meeting *m, void *bytes, size_t n, Err *e) {
    const Ranks *r = m->r;
    Comm *c = NULL;
    CommCall all = {.kind = COMM_BROADCAST, .name = "NCCL's name", .buf = bytes, .count = n / 2, .dtype = BF16};
    if (!comm_mpi_open(r->rank, r->world, r->local, r->locals, m->deadline, &c, e)) return false;
    bool ok = comm_do(c, all, e) && comm_barrier(c, "NCCL's name is known", e);
    if (ok) comm_close(c); /* a failed one would end the process before its line is printed */
    return ok;
}
static bool ranks_open_share(void *ctx, void *bytes, size_t n, Err *e) {
    const Meeting *m = ctx;
    const Ranks *r = m->r;
    const char *file = m->how->store;
    if (file && *file) {
        RendezvousKey key = ranks_open_key_of(r, m->how->config, false);
        return rendezvous_file_share(&key, file, m->deadline, bytes, n, e);
    }
    if (r->from == RANKS_OPENMPI) return by_mpi(m, bytes, n, e);
    RendezvousKey key = ranks_open_key_of(r, m->how->config, m->one_host);
    RendezvousAt at = {.local = m->one_host,
                       .host = r->master,
                       .port = r->port,
                       .several = r->locals && r->locals < r->world,
                       .shared = r->from == RANKS_LAUNCH ? r->fd : 0};
    if (at.local) return rendezvous_share(&key, at, m->deadline, bytes, n, NULL, e);
    if (*r->master && r->port) {
        char *secret = ranks_secret(r, &at.secret.n, e);
        if (e->status) return false;
        at.secret.p = secret;
        bool ok = rendezvous_share(&key, at, m->deadline, bytes, n, NULL, e);
        free(secret);
        return ok;
    }
    return err_input(e,
                     "comm: nccl: %d ranks, %d of them on this host, need a rendezvous: set MASTER_ADDR and "
                     "MASTER_PORT, or dist.store to a file that all ranks see",
                     r->world, r->locals);
}
static bool nccl_met(const Ranks *r, const RanksHow *how, double deadline, bool one_host, Comm **out, Err *e) {
    Meeting m = {r, how, deadline, one_host};
    CommNcclOpen o = {.rank = imax(0, r->rank),
                      .world = r->world,
                      .local = imax(0, r->local),
                      .locals = imax(1, r->locals),
                      .deadline = deadline,
                      .share = ranks_open_share,
                      .ctx = &m};
    return comm_nccl_open(&o, out, e);
}

bool ranks_open(const Ranks *r, const RanksHow *how, Comm **out, Err *e) {
    CommBy by = how->by;
    double deadline = how->deadline;
    *out = NULL;
    if (by == COMM_NCCL && !how->device)
        return err_input(e, "dist.comm: nccl needs one GPU per rank: set run.device=cuda");
    if (r->world == 1 && by != COMM_NCCL) return true;
    if (how->device && by != COMM_AUTO && by != COMM_NCCL)
        return err_input(e, "dist.comm: %s sends from host memory only; for ranks on GPUs set dist.comm=nccl",
                         comm_by_name(by));
    if (deadline <= 0) deadline = r->deadline > 0 ? r->deadline : COMM_DEADLINE;
    bool one_host = r->locals == r->world;
    if (how->device) return nccl_met(r, how, deadline, one_host, out, e);
    if (by == COMM_AUTO) by = r->from == RANKS_OPENMPI || !one_host ? COMM_MPI : COMM_SHM;
    if (by == COMM_SHM) {
        if (!one_host)
            return err_input(e, "comm: shm: %d ranks, but only %d on this host; across hosts use mpi", r->world,
                             r->locals);
        if (r->from == RANKS_LAUNCH) return comm_shm_open(r->fd, r->rank, r->world, deadline, out, e);
        return shm_met(r, deadline, how->config, out, e);
    }
    if (r->from != RANKS_OPENMPI && r->from != RANKS_SLURM)
        return err_input(e, "comm: mpi: %s does not start MPI ranks: use mpirun, or srun --mpi=pmix",
                         ranks_from_name(r->from));
    return comm_mpi_open(r->rank, r->world, r->local, r->locals, deadline, out, e);
}
