/* team.c - the threads of the parallel regions of this program, where gcc compiles it: `#pragma omp parallel` calls GOMP_parallel, which the linker
 * replaces by the functions here (CMakeLists.txt, --wrap).
 *
 *   owner    ─┬─ region ──── waits ─┬─ serial ─┬─ region …       a wait: microseconds of reading in a loop,
 *   helper 1  ├─ region ────────────┤  waits   ├─ region …       then sleep (futex)
 *
 * libgomp's threads read in a loop for up to 20 ms before they sleep. Beside another job that takes the core of a thread which the others wait for, and the
 * others take the core that it would need. A wait that began with much reading in vain begins the next ones with less, so that beside other jobs threads
 * sleep at once; alone on their cores they hardly ever do.
 *
 * Invariants
 *   1. a helper belongs to the thread that began its first region, and ends with it; after fork the child has none;
 *   2. a region begins when all have ended the one before: every gate is opened once per region and helper, or once per barrier.
 * Where a variable of OpenMP says how threads wait, where they run or how many there may be,
 * and where a process has more than 8 cores, libgomp does all of it. */
#include "core/clock.h"
#include "core/cores.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef LS_OWN_TEAM /* gcc; with clang, OpenMP's library has another interface */

#define SPIN_MOST  2e-4 /* seconds: more than most waits of threads that have a core each */
#define SPIN_LEAST 2e-6
#define PROBE      64 /* one wait of so many is long again */
#define CORES_MOST 8  /* with more, libgomp is faster alone: with 16 this had 0.91 of its speed (0.86 to 0.96) */

void team_parallel(void (*fn)(void *), void *data, unsigned n, unsigned flags) __asm__("__wrap_GOMP_parallel");
void team_barrier(void) __asm__("__wrap_GOMP_barrier");
int team_thread_num(void) __asm__("__wrap_omp_get_thread_num");
int team_num_threads(void) __asm__("__wrap_omp_get_num_threads");
void libgomp_parallel(void (*fn)(void *), void *data, unsigned n, unsigned flags) __asm__("__real_GOMP_parallel");
void libgomp_barrier(void) __asm__("__real_GOMP_barrier");
int libgomp_thread_num(void) __asm__("__real_omp_get_thread_num");
int libgomp_num_threads(void) __asm__("__real_omp_get_num_threads");

/* ---- waiting ---- */

typedef struct gate {
    _Atomic uint32_t value, sleepers;
} gate;

static _Thread_local struct {
    double spin; /* seconds */
    unsigned n;  /* waits   */
} patience = {.spin = SPIN_MOST};

static void open_gate(gate *g)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers)) syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static bool is_open(const gate *g, uint32_t seen)
{
    return atomic_load_explicit(&g->value, memory_order_acquire) != seen;
}

static bool spin_at(const gate *g, uint32_t seen, double seconds)
{
    const double end = ls_now() + seconds;
    do
        for (int i = 0; i < 16; i++) {
            if (is_open(g, seen)) return true;
#ifdef __x86_64__
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
    while (ls_now() < end);
    return false;
}

/* Until it has been opened after its value was `seen`. */
static void pass_gate(gate *g, uint32_t seen)
{
    if (is_open(g, seen)) return;
    const bool probe = ++patience.n % PROBE == 0;
    if (spin_at(g, seen, probe ? SPIN_MOST : patience.spin)) {
        patience.spin = probe || 2 * patience.spin > SPIN_MOST ? SPIN_MOST : 2 * patience.spin;
        return;
    }
    patience.spin = patience.spin / 2 > SPIN_LEAST ? patience.spin / 2 : SPIN_LEAST;
    atomic_fetch_add(&g->sleepers, 1);
    while (!is_open(g, seen)) syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

/* ---- the team of a thread ---- */

typedef struct helper helper;
struct helper { /* on the stack of its thread */
    _Alignas(64) gate go;
    helper *next;
};

typedef struct team {
    helper *first, *last;
    int n_helper, n; /* threads there are beside the owner; threads of the region, with it */
    void (*fn)(void *);
    void *data;
    atomic_int quit;              /* 1: helpers end; 2: and all gates have been opened, so that their stacks may go */
    _Alignas(64) gate done;       /* counters have lines of their own: others read the gates in a loop */
    _Alignas(64) atomic_int left; /* helpers in the region           */
    atomic_int alive;             /* helpers that have not ended     */
    _Alignas(64) gate together;
    _Alignas(64) atomic_int arrived; /* at the barrier */
} team;

static _Thread_local team own;
static _Thread_local struct {
    team *in;  /* NULL in a region of one */
    int id, n; /* n 0: in no region of ours */
} me;

static struct {
    pthread_once_t once;
    pthread_key_t key; /* of threads that have a team */
    bool off;
} common = {.once = PTHREAD_ONCE_INIT};

static void disband(void *owner)
{
    team *t = owner;
    atomic_store(&t->quit, 1);
    for (helper *h = t->first, *next; h; h = next) {
        next = h->next;
        open_gate(&h->go);
    }
    atomic_store(&t->quit, 2);
    while (atomic_load(&t->alive)) sched_yield();
}

static void forget_helpers(void)
{
    own = (team){0};
    me.n = 0;
}

static void prepare(void)
{
    static const char *const set[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT",    "OMP_THREAD_LIMIT", "OMP_PROC_BIND",
                                      "OMP_PLACES",      "GOMP_CPU_AFFINITY", "OMP_STACKSIZE",    "GOMP_STACKSIZE"};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) common.off |= getenv(set[i]) != NULL;
    common.off |= ls_cores_usable() > CORES_MOST;
    if (pthread_key_create(&common.key, disband) || pthread_atfork(NULL, NULL, forget_helpers)) common.off = true;
}

static void *help(void *owner)
{
    team *t = owner;
    helper h = {.next = NULL};
    const int id = t->n_helper + 1;
    if (t->last) t->last->next = &h;
    else t->first = &h;
    t->last = &h;
    open_gate(&t->done);
    for (uint32_t seen = 0;; seen++) {
        pass_gate(&h.go, seen);
        if (atomic_load(&t->quit)) break;
        me.in = t, me.id = id, me.n = t->n;
        t->fn(t->data);
        me.n = 0;
        if (atomic_fetch_sub(&t->left, 1) == 1) open_gate(&t->done);
    }
    while (atomic_load(&t->quit) < 2) sched_yield();
    atomic_fetch_sub(&t->alive, 1);
    return NULL;
}

/* The threads that a region of n has: fewer if the system starts no more. */
static int find_helpers(team *t, int n)
{
    pthread_attr_t detached;
    pthread_t thread;
    if (t->n_helper >= n - 1) return n;
    if (pthread_setspecific(common.key, t) || pthread_attr_init(&detached)) return t->n_helper + 1;
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    while (t->n_helper < n - 1) {
        const uint32_t before = atomic_load(&t->done.value);
        if (pthread_create(&thread, &detached, help, t)) break;
        pass_gate(&t->done, before);
        t->n_helper++;
        atomic_fetch_add(&t->alive, 1);
    }
    (void)pthread_attr_destroy(&detached);
    return t->n_helper + 1;
}

void team_parallel(void (*fn)(void *), void *data, unsigned n_asked, unsigned flags)
{
    team *t = &own;
    (void)pthread_once(&common.once, prepare);
    if (!n_asked || common.off) {
        libgomp_parallel(fn, data, n_asked, flags);
        return;
    }
    const __typeof__(me) outer = me;
    const int n = n_asked == 1 || outer.n ? 1 : find_helpers(t, (int)n_asked);
    me.in = n > 1 ? t : NULL, me.id = 0, me.n = n;
    const uint32_t before = atomic_load(&t->done.value);
    if (n > 1) {
        t->fn = fn, t->data = data, t->n = n;
        atomic_store(&t->left, n - 1);
        const helper *h = t->first;
        for (int i = 1; i < n; i++, h = h->next) open_gate((gate *)&h->go);
    }
    fn(data);
    if (n > 1) pass_gate(&t->done, before);
    me = outer;
}

void team_barrier(void)
{
    team *t = me.in;
    if (!me.n) libgomp_barrier();
    if (me.n < 2) return;
    const uint32_t before = atomic_load(&t->together.value);
    if (atomic_fetch_add(&t->arrived, 1) < me.n - 1) {
        pass_gate(&t->together, before);
        return;
    }
    atomic_store(&t->arrived, 0);
    open_gate(&t->together);
}

int team_thread_num(void)
{
    return me.n ? me.id : libgomp_thread_num();
}

int team_num_threads(void)
{
    return me.n ? me.n : libgomp_num_threads();
}

#endif
