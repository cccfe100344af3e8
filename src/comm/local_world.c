/* local_world.c - the memory that workers of one host share: forked from one parent (a mapping without a name), or started by somebody
 * else (a memfd, handed over as a file descriptor). Nothing of it outlives the last worker. */
#include "comm/local_impl.h"

#include "core/clock.h"
#include "core/deadline.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC      0x31706574736b636cULL
#define HUGE_PAGE  LOCAL_HUGE_PAGE
#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

control *local_control(ls_local_world *w, int id)
{
    return (control *)(void *)((char *)w + w->control_off + (size_t)id * round_up(sizeof(control), 4096));
}

mailbox *local_mailbox(ls_local_world *w, int id, int from, int to)
{
    mailbox *m = (mailbox *)(void *)((char *)w + w->mailbox_off);
    return &m[((size_t)id * (size_t)w->size + (size_t)from) * (size_t)w->size + (size_t)to];
}

char *local_arena(ls_local_world *w, int rank)
{
    return (char *)w + w->arena_off + (size_t)rank * w->arena_nbytes;
}

int local_take_control(ls_local_world *w)
{
    uint64_t free_bits = atomic_load(&w->free_control);
    while (free_bits) {
        const int id = __builtin_ctzll(free_bits);
        if (atomic_compare_exchange_weak(&w->free_control, &free_bits, free_bits & ~(1ULL << id))) return id;
    }
    return -1;
}

void local_drop_control(ls_local_world *w, int id, int n_member)
{
    control *ctl = local_control(w, id);
    if (atomic_fetch_add(&ctl->members, 1) + 1 < n_member) return;
    memset(ctl, 0, sizeof *ctl); /* everyone is done with it */
    memset(local_mailbox(w, id, 0, 0), 0, (size_t)(w->size * w->size) * sizeof(mailbox));
    atomic_fetch_or(&w->free_control, 1ULL << id);
}

size_t local_machine_nbytes(void)
{
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

static ls_status lay_out(int size, size_t arena_nbytes, ls_local_world *head)
{
    if (size < 1 || size > MAX_RANK)
        return ls_fail(LS_E_CONFIG, "%d workers on one host are not supported; use 1 to %d", size, MAX_RANK);
    *head = (ls_local_world){
        .magic = MAGIC, .size = size, .arena_nbytes = round_up(arena_nbytes, HUGE_PAGE), .free_control = ~1ULL};
    head->id = (uint64_t)(ls_now() * 1e9) ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)head;
    head->control_off = round_up(sizeof *head, 4096);
    head->mailbox_off = head->control_off + N_CONTROL * round_up(sizeof(control), 4096);
    head->arena_off =
        round_up(head->mailbox_off + (size_t)N_CONTROL * (size_t)(size * size) * sizeof(mailbox), HUGE_PAGE);
    head->map_nbytes = head->arena_off + (size_t)size * head->arena_nbytes;
    return LS_OK;
}

/* Like mmap, at a multiple of the huge page: the kernel maps a huge page only where address and offset in the file agree. */
static void *map_aligned(int fd, size_t nbytes)
{
    const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0);
    char *room = mmap(NULL, nbytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return MAP_FAILED;
    const size_t before = round_up((size_t)(uintptr_t)room, HUGE_PAGE) - (size_t)(uintptr_t)room;
    char *p = mmap(room + before, nbytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (p == MAP_FAILED) {
        const int why = errno;
        munmap(room, nbytes + HUGE_PAGE);
        errno = why;
        return MAP_FAILED;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *end = p + round_up(nbytes, page);
    if (before) munmap(room, before);
    munmap(end, (size_t)(room + nbytes + HUGE_PAGE - end));
    return p;
}

static ls_status map(int fd, size_t nbytes, ls_local_world **out) /* fd -1: no file */
{
    struct rlimit limit;
    void *p = map_aligned(fd, nbytes);
    if (p == MAP_FAILED)
        return ls_fail(LS_E_NOMEM, "cannot reserve %zu bytes of shared memory: %s%s", nbytes, strerror(errno),
                       getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY
                           ? ""
                           : "; the address space is limited (ulimit -v): raise the limit or use fewer workers");
    *out = p;
    return LS_OK;
}

/* Every worker maps the arenas of all. Pages take memory only when they are used, but a limit of the address space (ulimit -v) counts them
 * at once: the arenas get half of it. */
static size_t within_limit(int size, size_t arena_nbytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return arena_nbytes;
    const size_t most = (size_t)limit.rlim_cur / 2 / (size_t)size / HUGE_PAGE * HUGE_PAGE;
    return arena_nbytes < most ? arena_nbytes : most;
}

ls_status ls_local_world_format(int fd, int size, size_t arena_nbytes, ls_local_world **out)
{
    ls_local_world head, *w = NULL;
    LS_TRY(lay_out(size, within_limit(size, arena_nbytes), &head));
    if (fd >= 0 && ftruncate(fd, (off_t)head.map_nbytes))
        return ls_fail(LS_E_NOMEM, "cannot create %zu bytes of shared memory: %s", head.map_nbytes, strerror(errno));
    if (fd >= 0) (void)fcntl(fd, F_ADD_SEALS, SIZE_SEALS); /* of a memfd */
    LS_TRY(map(fd, head.map_nbytes, &w));
    memcpy(w, &head, sizeof head);
    for (int r = 0; r < size; r++) atomic_init(&w->rank[r], r);
    *out = w;
    return LS_OK;
}

ls_status ls_local_world_create(int size, size_t arena_nbytes, ls_local_world **out)
{
    return ls_local_world_format(-1, size, arena_nbytes, out);
}

int local_memfd(void)
{
    return memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/* Nobody can take pages away from those that have mapped it. A named object cannot be sealed; only its owner can change it. */
static bool is_sealed(int fd, const struct stat *s)
{
    return s->st_nlink > 0 || (fcntl(fd, F_GET_SEALS) & SIZE_SEALS) == SIZE_SEALS;
}

/* Whether `head` is what ls_local_world_format writes for `size` workers into so many bytes: every offset and size is computed again. */
static bool is_sane(const ls_local_world *head, int size, size_t nbytes)
{
    ls_local_world want;
    if (head->size != size || head->arena_nbytes > nbytes / (size_t)size) return false;
    if (lay_out(size, head->arena_nbytes, &want) != LS_OK) {
        ls_err_clear();
        return false;
    }
    return head->arena_nbytes == want.arena_nbytes && head->control_off == want.control_off &&
           head->mailbox_off == want.mailbox_off && head->arena_off == want.arena_off &&
           head->map_nbytes == want.map_nbytes && head->map_nbytes == nbytes;
}

ls_status ls_local_world_open(int fd, int size, ls_local_world **out)
{
    struct stat s;
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_size < (off_t)sizeof(ls_local_world))
        return ls_fail(LS_E_COMM, "the file descriptor from the launcher is not the shared memory of a run");
    if (s.st_uid != geteuid() || !is_sealed(fd, &s))
        return ls_fail(LS_E_COMM, "the shared memory of this run was not made by its rank 0: its owner is uid %u%s",
                       (unsigned)s.st_uid, s.st_uid == geteuid() ? ", and its size can still be changed" : "");
    ls_local_world *w = NULL;
    LS_TRY(map(fd, (size_t)s.st_size, &w));
    if (w->magic != MAGIC || !is_sane(w, size, (size_t)s.st_size)) {
        munmap(w, (size_t)s.st_size);
        return ls_fail(LS_E_COMM,
                       "the workers run different versions of lockstep; start all of them from the same build");
    }
    *out = w;
    return LS_OK;
}

void ls_local_world_destroy(ls_local_world **w)
{
    if (!*w) return;
    ls_deadline_unwatch(&(*w)->aborted);
    munmap(*w, (*w)->map_nbytes);
    *w = NULL;
}

void ls_local_world_join(ls_local_world *w, int rank)
{
    CPU_ZERO(&w->cpus[rank]);
    (void)sched_getaffinity(0, sizeof w->cpus[rank], &w->cpus[rank]);
    atomic_store(&w->pid[rank], (int)getpid());
    ls_deadline_watch(&w->aborted, w->abort_words, ABORT_GRACE, ls_status_exit_code(LS_E_COMM));
}

void ls_local_world_leave(ls_local_world *w, int rank)
{
    atomic_store(&w->left[rank], true);
}

bool ls_comm_should_tell(ls_comm *c)
{
    int nobody = 0;
    if (ls_err_is_peers()) return false;
    if (!c->world) return true;
    return atomic_compare_exchange_strong(&c->world->reporter, &nobody, c->world_rank + 1) ||
           nobody == c->world_rank + 1;
}

bool comm_aborted(const ls_comm *c, char *words, size_t room)
{
    if (!c->world || atomic_load(&c->world->aborted) <= 0) return false;
    snprintf(words, room, "%s", c->world->abort_words[0] ? c->world->abort_words : "another worker exited");
    return true;
}

void local_wake(control *c)
{
    atomic_fetch_add(&c->event, 1);
    if (atomic_load(&c->waiters)) syscall(SYS_futex, &c->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool ls_local_world_abort(ls_local_world *w, int rank, const char *words)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&w->aborted, &none, -1)) return false; /* the first one reports */
    snprintf(w->abort_words, sizeof w->abort_words, "%s", words);
    atomic_store(&w->aborted, rank + 1);
    const uint64_t free_bits = atomic_load(&w->free_control);
    for (int i = 0; i < N_CONTROL; i++)
        if (!(free_bits >> i & 1)) local_wake(local_control(w, i));
    return true;
}
