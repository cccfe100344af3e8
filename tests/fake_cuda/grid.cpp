/* grid.cpp - the threads of a block as fibers, and their synchronization.
 *
 *   for each block:  for each warp:  run lanes until all of them wait at a barrier of the block or are done;  until all are done
 *
 * A fiber whose thread is done takes the next thread of its warp that has not begun, so a kernel without collectives costs one call per
 * thread. When no thread can continue, there is a deadlock: stop and print the position of each thread. */
#include "fake_cuda/grid.h"
#include "fake_cuda/fiber.h"

#include <deque>
#include <memory>
#include <stdarg.h>
#include <stdio.h>
#include <string>
#include <vector>

uint3 emu_tid, emu_bid;
dim3 emu_bdim, emu_gdim;
int emu_arch;

namespace {

enum { MOST_BARRIERS = 16, LANES = 32 };

struct meeting { /* of some lanes of a warp */
    unsigned mask = 0, came = 0, closed = 0, left = 0;
    const char *what = nullptr;
    size_t n = 0;
    std::vector<unsigned char> rows;
};

/* Meetings of a whole warp have one order, so two objects are used in turn: a lane that reaches the meeting after the next has seen all lanes leave
 * the first one. */
struct warp_meetings {
    meeting full[2];
};

struct async_copy {
    void *dst;
    const void *src;
    size_t nbytes, nread;
};

struct worker;

struct alignas(64) thread {
    enum { FRESH, RUNS, WAITS, DONE } state;
    uint3 tid;
    int warp, lane;
    worker *on;
    const unsigned *word; /* WAITS: until *word != old */
    unsigned old;
    const char *what;
    int barrier;
    meeting *last;   /* whose rows it may still read           */
    unsigned n_full; /* meetings of the whole warp it joined   */
    std::deque<std::vector<async_copy>> groups;
    std::vector<async_copy> open;
};

struct barrier {
    unsigned came, turn;
    int need, votes, result;
};

struct worker {
    emu_fiber *fiber;
};

struct engine {
    const char *name = "";
    const emu_body *body = nullptr;
    std::vector<thread> threads;
    int n = 0, n_warp = 0, n_done = 0;
    barrier bars[MOST_BARRIERS] = {};
    std::vector<std::vector<std::unique_ptr<meeting>>> open; /* by warp */
    std::vector<warp_meetings> whole;                        /* by warp */
    std::vector<worker *> idle;
    std::vector<int> lane_order, warp_order;
    std::vector<char> begun; /* by warp: no thread is FRESH */
    int warp = 0;            /* that runs                           */
    size_t fresh = 0;        /* of lane_order: the first lane of this warp that may be FRESH */
    size_t at = 0;           /* of lane_order: the first lane whose turn is not over         */
    bool any = false;        /* whether a thread made progress      */
    thread *now = nullptr;
    uint64_t serial = 0, seed = 0;
    unsigned round = 0; /* over the warps of the block */
    void *shared = nullptr;
    size_t shared_nbytes = 0, shared_static = 0, shared_room = 0;
};

engine *const the_engine = new engine(); /* never destroyed: streams may be drained at exit */

inline engine &e()
{
    return *the_engine;
}

/* ---- order ---- */

unsigned draw()
{
    uint64_t &s = e().seed;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (unsigned)(s >> 32);
}

void shuffle(std::vector<int> &v)
{
    if (!e().seed) return;
    for (size_t i = v.size(); i > 1; i--) std::swap(v[i - 1], v[draw() % i]);
}

void in_order(std::vector<int> &v, int n)
{
    v.resize((size_t)n);
    for (int i = 0; i < n; i++) v[(size_t)i] = i;
}

/* ---- messages ---- */

std::string place(const thread &t)
{
    char text[160];
    if (t.state == thread::DONE) return "has ended";
    if (t.state == thread::RUNS) return "runs";
    if (t.state == thread::FRESH) return "has not begun";
    if (t.barrier >= 0) snprintf(text, sizeof text, "waits at barrier %d of the block", t.barrier);
    else snprintf(text, sizeof text, "waits in %s", t.what);
    return text;
}

void tell_threads()
{
    engine &g = e();
    for (int i = 0, shown = 0; i < g.n && shown < 24; shown++) {
        const std::string here = place(g.threads[(size_t)i]);
        int j = i;
        while (j + 1 < g.n && place(g.threads[(size_t)j + 1]) == here) j++;
        if (j > i) fprintf(stderr, "  threads %d to %d: %s\n", i, j, here.c_str());
        else fprintf(stderr, "  thread %d: %s\n", i, here.c_str());
        i = j + 1;
    }
}

} // namespace

void emu_stop(const char *fmt, ...)
{
    engine &g = e();
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "emulator: kernel %s, block (%u,%u,%u)", g.name, emu_bid.x, emu_bid.y, emu_bid.z);
    if (g.now) fprintf(stderr, ", thread (%u,%u,%u)", emu_tid.x, emu_tid.y, emu_tid.z);
    fprintf(stderr, ": ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    tell_threads();
    fflush(stderr);
    abort();
}

/* ---- waiting ---- */

static void leave(worker *w);

static void wait(const unsigned *word, const char *what, int barrier)
{
    engine &g = e();
    thread *t = g.now;
    t->state = thread::WAITS;
    t->word = word;
    t->old = *word;
    t->what = what;
    t->barrier = barrier;
    leave(t->on);
    /* whoever switched here has set now and the coordinates */
}

void emu_wait(const unsigned *word, const char *what)
{
    if (!e().now) emu_stop("%s outside a kernel", what);
    wait(word, what, -1);
}

void emu_yield(const char *what)
{
    emu_wait(&e().round, what);
}

int emu_thread(void)
{
    if (!e().now) emu_stop("called outside a kernel");
    return e().now->warp * LANES + e().now->lane;
}

static barrier &come(int id, int n, bool pred)
{
    engine &g = e();
    if (!g.now) emu_stop("a barrier was called outside a kernel");
    if (id < 0 || id >= MOST_BARRIERS) emu_stop("barrier %d does not exist: there are %d", id, MOST_BARRIERS);
    barrier &b = g.bars[id];
    const int need = n > 0 ? n : g.n;
    if (need % LANES && need != g.n) emu_stop("barrier %d needs %d threads: not whole warps", id, need);
    if (b.came == 0) b.need = need, b.votes = 0;
    else if (b.need != need) emu_stop("barrier %d needs %d threads here and %d elsewhere", id, need, b.need);
    b.came++;
    b.votes += pred;
    return b;
}

static bool complete(barrier &b)
{
    if ((int)b.came < b.need) return false;
    b.result = b.votes;
    b.came = 0;
    b.turn++;
    return true;
}

int emu_barrier(int id, int n, bool pred)
{
    barrier &b = come(id, n, pred);
    if (!complete(b)) wait(&b.turn, "a barrier", id);
    return b.result;
}

unsigned emu_lane(void)
{
    return (unsigned)e().now->lane;
}

static meeting *meet(thread *t, unsigned mask, size_t n, const char *what)
{
    engine &g = e();
    auto &open = g.open[(size_t)t->warp];
    for (auto &m : open) {
        if (m->closed || m->mask != mask)
            continue; /* other masks are other meetings: they may happen one after the other */
        if (m->n != n || (m->what != what && strcmp(m->what, what) != 0))
            emu_stop("lane %d comes to %s (%zu bytes) with mask %08x, others of its warp wait in %s (%zu bytes)",
                     t->lane, what, n, mask, m->what, m->n);
        return m.get();
    }
    for (auto &m : open)
        if (m->closed && !m->left) {
            m->mask = mask, m->came = m->closed = 0, m->what = what, m->n = n;
            m->rows.resize(n * LANES);
            return m.get();
        }
    open.emplace_back(new meeting());
    meeting *m = open.back().get();
    m->mask = mask, m->what = what, m->n = n;
    m->rows.resize(n * LANES);
    return m;
}

static meeting *meet_whole(thread *t, size_t n, const char *what)
{
    meeting *m = &e().whole[(size_t)t->warp].full[t->n_full++ & 1];
    if (m->closed || !m->came) {
        m->mask = ~0u, m->came = m->closed = m->left = 0, m->what = what, m->n = n;
        if (m->rows.size() < n * LANES) m->rows.resize(n * LANES);
    } else if (m->n != n || (m->what != what && strcmp(m->what, what) != 0)) {
        emu_stop("lane %d comes to %s (%zu bytes) with mask ffffffff, others of its warp wait in %s (%zu bytes)",
                 t->lane, what, n, m->what, m->n);
    }
    return m;
}

const void *emu_warp_exchange(const void *mine, size_t n, unsigned mask, const char *what)
{
    engine &g = e();
    thread *t = g.now;
    if (!t) emu_stop("%s outside a kernel", what);
    if (!(mask >> t->lane & 1)) emu_stop("lane %d is not in the mask %08x of its own %s", t->lane, mask, what);
    if (t->last) t->last->left &= ~(1u << t->lane), t->last = nullptr;
    meeting *m = mask == ~0u ? meet_whole(t, n, what) : meet(t, mask, n, what);
    memcpy(m->rows.data() + n * (size_t)t->lane, mine, n);
    m->came |= 1u << t->lane;
    t->last = m;
    if (m->came == m->mask) m->left = m->mask, m->closed = 1;
    else wait(&m->closed, what, -1);
    return m->rows.data();
}

/* ---- asynchronous copies ---- */

void emu_cp_async(void *dst, const void *src, size_t nbytes, size_t nread)
{
    emu_check_aligned(dst, nbytes);
    if (nread) emu_check_aligned(src, nbytes);
    e().now->open.push_back({dst, src, nbytes, nread});
}

void emu_cp_async_commit(void)
{
    thread *t = e().now;
    t->groups.push_back(std::move(t->open));
    t->open.clear();
}

void emu_cp_async_wait(int pending)
{
    thread *t = e().now;
    while ((int)t->groups.size() > pending) {
        for (const async_copy &c : t->groups.front()) {
            if (c.nread) memcpy(c.dst, c.src, c.nread);
            memset((char *)c.dst + c.nread, 0, c.nbytes - c.nread);
        }
        t->groups.pop_front();
    }
}

/* ---- running ---- */

uint64_t emu_block_serial(void)
{
    return e().serial;
}

void emu_static_shared(size_t nbytes)
{
    engine &g = e();
    g.shared_static += nbytes;
    if (g.shared_static + g.shared_nbytes > g.shared_room)
        emu_stop(
            "%zu bytes of static and %zu of dynamic shared memory; a block of this kernel may have %zu on this card",
            g.shared_static, g.shared_nbytes, g.shared_room);
}

void *emu_dynamic_shared(void)
{
    return e().shared;
}

size_t emu_dynamic_nbytes(void)
{
    return e().shared_nbytes;
}

void emu_check_aligned(const void *p, size_t n)
{
    if ((n & (n - 1)) == 0 && n <= 16 && (uintptr_t)p % n) emu_stop("%p is not aligned to %zu bytes", p, n);
}

static void set_now(thread *t)
{
    e().now = t;
    if (t) emu_tid = t->tid;
}

static thread *fresh_of_warp()
{
    engine &g = e();
    for (; g.fresh < LANES; g.fresh++) {
        const int i = g.warp * LANES + g.lane_order[g.fresh];
        if (i < g.n && g.threads[(size_t)i].state == thread::FRESH) return &g.threads[(size_t)i];
    }
    return nullptr;
}

static void begin_thread(worker *w, thread *t)
{
    t->state = thread::RUNS;
    t->on = w;
    set_now(t);
}

static void work(void *arg)
{
    worker *w = static_cast<worker *>(arg);
    for (;;) {
        for (thread *t = e().now; t;) {
            (*e().body)();
            t->state = thread::DONE;
            if (t->last) t->last->left &= ~(1u << t->lane), t->last = nullptr;
            e().n_done++;
            if ((t = fresh_of_warp())) begin_thread(w, t);
        }
        e().idle.push_back(w);
        leave(w);
    }
}

static bool can_go(const thread &t)
{
    return t.state == thread::WAITS && *t.word != t.old;
}

static worker *idle_worker()
{
    engine &g = e();
    worker *w;
    if (g.idle.empty()) {
        w = new worker();
        w->fiber = fiber_make(work, w);
    } else {
        w = g.idle.back();
        g.idle.pop_back();
    }
    return w;
}

/* The worker of the thread of this warp whose turn is next, which becomes the running one; NULL: all had their turns. Threads that have not
 * begun come first. */
static worker *next_turn()
{
    engine &g = e();
    if (thread *t = fresh_of_warp()) {
        begin_thread(idle_worker(), t);
        g.any = true;
        return t->on;
    }
    while (g.at < LANES) {
        const int i = g.warp * LANES + g.lane_order[g.at++];
        if (i >= g.n || !can_go(g.threads[(size_t)i])) continue;
        thread *t = &g.threads[(size_t)i];
        t->state = thread::RUNS;
        set_now(t);
        g.any = true;
        return t->on;
    }
    set_now(nullptr);
    return nullptr;
}

/* From the fiber of w, whose thread waits or is done, to the next one: one switch per turn. */
static void leave(worker *w)
{
    worker *next = next_turn();
    fiber_switch(w->fiber, next ? next->fiber : nullptr);
}

/* Whether any thread made progress. */
static bool run_warp(int warp)
{
    engine &g = e();
    bool any = false;
    g.warp = warp;
    do {
        shuffle(g.lane_order);
        g.fresh = g.begun[(size_t)warp] ? (size_t)LANES : 0;
        g.begun[(size_t)warp] = true;
        g.at = 0;
        g.any = false;
        if (worker *w = next_turn()) fiber_switch(nullptr, w->fiber);
        any |= g.any;
    } while (g.any);
    return any;
}

static void begin_block()
{
    engine &g = e();
    g.serial++;
    g.n_done = 0;
    g.shared_static = 0;
    if (g.shared_nbytes) memset(g.shared, 0xff, g.shared_nbytes);
    for (barrier &b : g.bars) b.came = 0;
    for (warp_meetings &m : g.whole) m.full[0].came = m.full[1].came = m.full[0].closed = m.full[1].closed = 0;
    g.begun.assign((size_t)g.n_warp, false);
    for (int i = 0; i < g.n; i++) {
        thread &t = g.threads[(size_t)i];
        const unsigned u = (unsigned)i;
        t.state = thread::FRESH;
        t.tid = {u % emu_bdim.x, u / emu_bdim.x % emu_bdim.y, u / (emu_bdim.x * emu_bdim.y)};
        t.warp = i / LANES;
        t.lane = i % LANES;
        t.last = nullptr;
        t.n_full = 0;
        if (!t.groups.empty()) t.groups.clear();
        if (!t.open.empty()) t.open.clear();
    }
}

static void run_block()
{
    engine &g = e();
    begin_block();
    while (g.n_done < g.n) {
        bool any = false;
        g.round++;
        shuffle(g.warp_order);
        for (int w : g.warp_order) any |= run_warp(w);
        if (!any) emu_stop("deadlock: not all threads reach a barrier or a collective");
    }
    for (int id = 0; id < MOST_BARRIERS; id++)
        if (g.bars[id].came)
            emu_stop("the block ends with %u of %d threads at barrier %d", g.bars[id].came, g.bars[id].need, id);
    emu_hopper_end();
}

void emu_run_grid(const char *name, dim3 grid, dim3 block, size_t smem, size_t room, const emu_body &body)
{
    engine &g = e();
    if (g.body) emu_stop("a kernel starts inside another");
    cudaFuncAttributes code = {};
    g.name = name;
    g.body = &body;
    emu_func_code(&code);
    emu_arch = code.ptxVersion;
    emu_bdim = block;
    emu_gdim = grid;
    g.n = (int)(block.x * block.y * block.z);
    g.n_warp = (g.n + LANES - 1) / LANES;
    if ((int)g.threads.size() < g.n) g.threads.resize((size_t)g.n);
    if ((int)g.open.size() < g.n_warp) g.open.resize((size_t)g.n_warp);
    if ((int)g.whole.size() < g.n_warp) g.whole.resize((size_t)g.n_warp);
    in_order(g.lane_order, LANES);
    in_order(g.warp_order, g.n_warp);
    const char *order = getenv("LS_EMU_ORDER");
    g.seed = order && *order ? strtoull(order, nullptr, 10) * 0x9e3779b97f4a7c15u | 1 : 0;
    g.shared_nbytes = smem;
    g.shared_room = room;
    g.shared = nullptr;
    if (smem && posix_memalign(&g.shared, 1024, smem) != 0) emu_stop("no memory for %zu bytes of shared memory", smem);
    const uint64_t n_block = (uint64_t)grid.x * grid.y * grid.z;
    /* Shuffled: block i is first + step*i modulo a number of blocks that step shares no factor with. */
    uint64_t first = 0, step = 1;
    if (g.seed) {
        first = draw() % n_block;
        for (step = draw() % n_block | 1;; step += 2) {
            uint64_t a = step, b = n_block;
            while (b) {
                const uint64_t r = a % b;
                a = b;
                b = r;
            }
            if (a == 1) break;
        }
    }
    for (uint64_t i = 0; i < n_block; i++) {
        const uint64_t at = (first + step * i) % n_block;
        emu_bid = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
        run_block();
    }
    free(g.shared);
    g.shared = nullptr;
    g.body = nullptr;
}
