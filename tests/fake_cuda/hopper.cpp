/* hopper.cpp - see hopper.h. */
#include "fake_cuda/hopper.h"
#include "fake_cuda/grid.h"

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string.h>
#include <vector>

namespace {

enum { M = 64, WIDEST = 128, K = 16, LANES = 32, GROUP = 128, ROW = 128 };

/* ---- state of the running block ---- */

struct copy {
    char *to;
    int nbytes;
    const void *from;   /* plain bytes, or … */
    emu_tensor_map map; /* … a tile          */
    int column, row, b;
};

struct mbar {
    int need, missing, waiting; /* arrivals; threads that wait */
    int64_t expected;           /* bytes of this phase        */
    unsigned turn;
    std::vector<copy> copies;
};

typedef std::array<unsigned char, WIDEST * K * 2> raw; /* of one operand, in its own order */

struct call { /* what all threads of a warpgroup ask for */
    uint64_t a, b;
    int n;
    bool add, rows, registers;
};

struct product : call { /* of a warpgroup */
    int done;           /* threads */
    raw raw_a, raw_b;
    std::array<double, M * K> A;      /* (M,K) */
    std::array<double, WIDEST * K> B; /* (K,n) */
};

struct sums { /* a thread's, in flight */
    float *at;
    std::vector<float> x;
    int pending;
};

struct mine { /* a thread's share of a product */
    std::shared_ptr<sums> d;
    const uint32_t *a;
    uint32_t a_bits[4];
    double A[2][K]; /* rows g and g+8 */
    uint64_t serial;
};

struct thread {
    uint64_t n = 0; /* products so far */
    bool fenced = false;
    std::deque<std::vector<mine>> groups;
    std::vector<mine> open;
    std::vector<std::shared_ptr<sums>> flight;
};

struct state {
    uint64_t block = ~(uint64_t)0;
    std::map<char *, mbar> bars;
    std::map<int, thread> threads;
    std::map<int, std::deque<product>> log; /* by warpgroup */
    std::map<int, uint64_t> first;          /* serial of log's front */
};

state *const the_state = new state();

state &s()
{
    if (the_state->block != emu_block_serial()) {
        *the_state = state();
        the_state->block = emu_block_serial();
    }
    return *the_state;
}

thread &me()
{
    return s().threads[emu_thread()];
}

/* ---- barriers and copies ---- */

const char mark[8] = {'m', 'b', 'a', 'r', 'r', 'i', 'e', 'r'};

mbar &bar_at(char *bar)
{
    auto at = s().bars.find(bar);
    if (at == s().bars.end()) emu_stop("%p is no barrier: mbar_init was not called", (void *)bar);
    if (memcmp(bar, mark, sizeof mark) != 0) emu_stop("the barrier at %p was overwritten", (void *)bar);
    return at->second;
}

void deliver(const copy &c)
{
    if (c.from) {
        memcpy(c.to, c.from, (size_t)c.nbytes);
        return;
    }
    const int size = c.map.nbytes, each = 16 / size;
    for (int r = 0; r < c.map.rows; r++)
        for (int e = 0; e < 8; e++) {
            char chunk[16] = {0};
            for (int i = 0; i < each; i++) {
                const int64_t column = c.column + e * each + i, row = c.row + r;
                if (row >= 0 && row < c.map.T && column >= 0 && column < c.map.columns && c.b >= 0 && c.b < c.map.B)
                    memcpy(chunk + i * size, c.map.x + ((c.b * c.map.T + row) * c.map.ld + column) * size,
                           (size_t)size);
            }
            memcpy(c.to + r * ROW + ((e ^ (r & 7)) << 4), chunk, sizeof chunk);
        }
}

/* Ends the phase if all arrived and the copies are all called for; copies happen only when a thread waits. */
void progress(mbar &b)
{
    int64_t called = 0;
    for (const copy &c : b.copies) called += c.nbytes;
    if (called > b.expected && !b.missing)
        emu_stop("a barrier expects %lld bytes, but copies have %lld", (long long)b.expected, (long long)called);
    if (b.missing || called != b.expected || (called && !b.waiting)) return;
    for (const copy &c : b.copies) deliver(c);
    b.copies.clear();
    b.missing = b.need, b.expected = 0, b.waiting = 0;
    b.turn++;
}

void call_for(const copy &c, char *bar)
{
    memset(c.to, 0xff, (size_t)c.nbytes);
    mbar &b = bar_at(bar);
    b.copies.push_back(c);
    progress(b);
}

void check_shared(const char *to, int nbytes, int align)
{
    const char *from = (const char *)emu_dynamic_shared();
    if (to < from || to + nbytes > from + emu_dynamic_nbytes())
        emu_stop("%p is outside of the block's shared memory", (const void *)to);
    if ((to - from) % align) emu_stop("a copy to %p, which is not aligned to %d bytes", (const void *)to, align);
}

} // namespace

void emu_mbar_init(char *bar, int arrivals)
{
    emu_needs(90, "mbarrier");
    check_shared(bar, 8, 8);
    memcpy(bar, mark, sizeof mark);
    s().bars[bar] = mbar{arrivals, arrivals, 0, 0, 0, {}};
}

void emu_mbar_arrive(char *bar, int nbytes)
{
    mbar &b = bar_at(bar);
    if (!b.missing) emu_stop("more arrivals at the barrier at %p than the %d of a phase", (void *)bar, b.need);
    b.missing--;
    b.expected += nbytes;
    progress(b);
}

void emu_mbar_wait(char *bar, int parity)
{
    mbar &b = bar_at(bar);
    if ((int)(b.turn & 1) != parity) return;
    b.waiting++;
    const unsigned turn = b.turn;
    progress(b);
    if (b.turn == turn) emu_wait(&b.turn, "mbar_wait");
}

void emu_tile_load(char *tile, const emu_tensor_map *m, int column, int row, int b, char *bar)
{
    emu_needs(90, "cp.async.bulk.tensor");
    check_shared(tile, m->rows * ROW, 1024); /* of the swizzle */
    call_for(copy{tile, m->rows * ROW, nullptr, *m, column, row, b}, bar);
}

void emu_bytes_load(char *to, const void *from, int nbytes, char *bar)
{
    emu_needs(90, "cp.async.bulk");
    check_shared(to, nbytes, 16);
    if ((uintptr_t)from % 16 || nbytes % 16) emu_stop("%d bytes from %p: not multiples of 16", nbytes, from);
    call_for(copy{to, nbytes, from, {}, 0, 0, 0}, bar);
}

/* ---- products ---- */

namespace {

/* The address of 16 bytes: operand row (or K row) r of the descriptor's tile, `chunk` of 16 bytes from its start on. */
const char *chunk_at(uint64_t desc, int r, int chunk)
{
    const uint64_t start = (desc & 0x3fff) << 4, stride = (desc >> 32 & 0x3fff) << 4;
    if (desc >> 62 != 1) emu_stop("the swizzle of descriptor %016llx is not 128 bytes", (unsigned long long)desc);
    if (desc >> 49 & 7) emu_stop("descriptor %016llx has a base offset", (unsigned long long)desc);
    uint64_t at = start + (uint64_t)(r / 8) * stride + (uint64_t)(r % 8) * ROW + (uint64_t)chunk * 16;
    at ^= (at >> 7 & 7) << 4;
    if (at + 16 > emu_dynamic_nbytes())
        emu_stop("descriptor %016llx reaches out of shared memory", (unsigned long long)desc);
    return (const char *)emu_dynamic_shared() + at;
}

/* n rows of a tile along K (n x 2 chunks), or K rows as they are (16 x 8 chunks). */
void read_raw(raw &x, uint64_t desc, int n, bool rows)
{
    const int from = rows ? K : n, chunks = rows ? 8 : 2;
    for (int r = 0; r < from; r++)
        for (int c = 0; c < chunks; c++) memcpy(&x[(size_t)(r * chunks + c) * 16], chunk_at(desc, r, c), 16);
}

bool is_raw(const raw &x, uint64_t desc, int n, bool rows)
{
    raw now = {};
    read_raw(now, desc, n, rows);
    return now == x;
}

float number_at(const raw &x, int i, float (*number)(uint16_t))
{
    uint16_t h;
    memcpy(&h, &x[(size_t)i * 2], 2);
    return number(h);
}

product &logged(int group, uint64_t serial)
{
    return s().log[group][(size_t)(serial - s().first[group])];
}

/* The first thread of the warpgroup to come decodes the operands; the others must issue the same product. */
void log_product(int group, uint64_t serial, const call &like, float (*number)(uint16_t))
{
    auto &log = s().log[group];
    if (serial - s().first[group] < log.size()) {
        const product &p = logged(group, serial);
        if (p.a != like.a || p.b != like.b || p.n != like.n || p.add != like.add || p.rows != like.rows ||
            p.registers != like.registers)
            emu_stop("product %llu of warpgroup %d is another one in other threads", (unsigned long long)serial, group);
        return;
    }
    log.emplace_back();
    product &p = log.back();
    static_cast<call &>(p) = like;
    read_raw(p.raw_b, p.b, p.n, p.rows);
    for (int k = 0; k < K; k++)
        for (int n = 0; n < p.n; n++)
            p.B[(size_t)(k * p.n + n)] = (double)number_at(p.raw_b, p.rows ? k * p.n + n : n * K + k, number);
    if (p.registers) return;
    read_raw(p.raw_a, p.a, M, false);
    for (int i = 0; i < M * K; i++) p.A[(size_t)i] = (double)number_at(p.raw_a, i, number);
}

void poison(float *d, size_t n)
{
    memset(d, 0xff, n * sizeof *d);
}

std::shared_ptr<sums> in_flight(thread &t, float *d, size_t n)
{
    for (auto &x : t.flight) {
        if (x->at == d && x->x.size() == n) return x;
        if (x->at < d + n && d < x->at + x->x.size()) emu_stop("sums of two products overlap");
    }
    auto x = std::make_shared<sums>();
    x->at = d, x->pending = 0;
    x->x.assign(d, d + n);
    poison(d, n);
    t.flight.push_back(x);
    return x;
}

/* Products are exact; the sum of 16 is computed in double and rounded once, as emu_mma does. */
void compute(const mine &m)
{
    const int id = emu_thread(), group = id / GROUP, lane = id % LANES, warp = id % GROUP / LANES;
    const int g = lane / 4, t = lane % 4;
    product &p = logged(group, m.serial);
    const bool looks = lane == 0; /* for its warp, which waits together */
    if (looks && !is_raw(p.raw_b, p.b, p.n, p.rows))
        emu_stop("B of product %llu changed before wgmma_wait", (unsigned long long)m.serial);
    const double *A[2] = {m.A[0], m.A[1]};
    if (p.registers) {
        if (memcmp(m.a, m.a_bits, sizeof m.a_bits) != 0)
            emu_stop("registers of A of product %llu changed before wgmma_wait", (unsigned long long)m.serial);
    } else {
        if (looks && !is_raw(p.raw_a, p.a, M, false))
            emu_stop("A of product %llu changed before wgmma_wait", (unsigned long long)m.serial);
        for (int h = 0; h < 2; h++) A[h] = &p.A[(size_t)((warp * 16 + h * 8 + g) * K)];
    }
    for (int n = 0; n < p.n / 8; n++) {
        float *const d = &m.d->x[(size_t)(n * 4)];
        const double *const b = &p.B[(size_t)(n * 8 + 2 * t)];
        double sum[4];
        for (int e = 0; e < 4; e++) sum[e] = p.add ? (double)d[e] : 0;
        for (int k = 0; k < K; k++)
            for (int e = 0; e < 4; e++) sum[e] += A[e >> 1][k] * b[k * p.n + (e & 1)];
        for (int e = 0; e < 4; e++) d[e] = (float)sum[e];
    }
    if (++p.done == GROUP) {
        auto &log = s().log[group];
        while (!log.empty() && log.front().done == GROUP) log.pop_front(), s().first[group]++;
    }
}

} // namespace

void emu_wgmma(float *d, int n, const uint32_t *a, uint64_t desc_a, uint64_t desc_b, bool add, bool rows,
               float (*number)(uint16_t))
{
    emu_needs(90, "wgmma");
    thread &t = me();
    const int id = emu_thread();
    if (!t.fenced) emu_stop("a product without wgmma_fence after the last wgmma_wait");
    mine m = {};
    m.serial = t.n++;
    m.a = a;
    static const uint32_t zero[4] = {0, 0, 0, 0};
    struct four {
        uint32_t a[4];
    } bits;
    memcpy(&bits, a ? a : zero, sizeof bits);
    const four *all = (const four *)emu_warp_exchange(&bits, sizeof bits, 0xffffffffu, "wgmma");
    memcpy(m.a_bits, &bits, sizeof bits);
    if (a) {
        const int g = id % LANES / 4;
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < K;
                 k++) { /* register h has columns 2t, 2t+1 of row 8h+g, register 2+h the same 8 columns on */
                const uint32_t word = all[4 * g + k % 8 / 2].a[k / 8 * 2 + h];
                m.A[h][k] = (double)number((uint16_t)(word >> 16 * (k & 1)));
            }
    }
    const call like = {desc_a, desc_b, n, add, rows, a != nullptr};
    log_product(id / GROUP, m.serial, like, number);
    m.d = in_flight(t, d, (size_t)n / 2);
    m.d->pending++;
    t.open.push_back(m);
}

void emu_wgmma_fence(void)
{
    me().fenced = true;
}

void emu_wgmma_commit(void)
{
    thread &t = me();
    t.groups.push_back(std::move(t.open));
    t.open.clear();
}

void emu_wgmma_wait(int pending)
{
    thread &t = me();
    if (!t.groups.empty()) emu_yield("wgmma_wait"); /* others may spoil what is in flight */
    __syncwarp();
    t.fenced = false;
    while ((int)t.groups.size() > pending) {
        for (const mine &m : t.groups.front()) {
            compute(m);
            m.d->pending--;
        }
        t.groups.pop_front();
    }
    for (size_t i = t.flight.size(); i-- > 0;) {
        sums &x = *t.flight[i];
        if (x.pending) continue;
        std::vector<float> bad(x.x.size());
        poison(bad.data(), bad.size());
        if (memcmp(x.at, bad.data(), bad.size() * sizeof(float)) != 0) emu_stop("sums changed before wgmma_wait");
        memcpy(x.at, x.x.data(), x.x.size() * sizeof(float));
        t.flight.erase(t.flight.begin() + (long)i);
    }
}

void emu_hopper_end(void)
{
    if (the_state->block != emu_block_serial()) return;
    for (const auto &b : s().bars)
        if (!b.second.copies.empty()) emu_stop("the block ends with copies in flight");
    for (const auto &l : s().log)
        if (!l.second.empty())
            emu_stop("the block ends with products in flight, or not in all warps of warpgroup %d", l.first);
    for (const auto &t : s().threads)
        if (!t.second.open.empty()) emu_stop("the block ends with a product that was not committed");
}
