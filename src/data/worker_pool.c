/* worker_pool.c - reads, processes and consumes the blocks of a corpus.
 *
 *   inputs   lane 0 | lane 1 | lane 2 | ...   a lane is one large file or several small ones
 *   lane     blocks 0, 1, 2, ...              read by one thread at a time, processed by the thread that has read them
 *
 * A thread without work reads the next block of the first lane that nobody is reading, and processes it. So lanes after the first are read
 * when the first cannot be read fast enough, which `width` expects from the time that reading needs. The caller consumes the results of
 * the first lane from memory. Those of later lanes are written to the file of the lane, in order, and read back when it is the first. */
#include "data/spill.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define LANE_BYTES   ((int64_t)1 << 20)  /* small files are joined to lanes of this size */
#define LANES        8                   /* that are read at the same time, at most */
#define LANES_MEMORY ((size_t)256 << 20) /* for unpacking */

enum { READING, WORKING, SPILLING, TAKING, N_KIND };

typedef struct spent {
    double wall, cpu;
} spent;

typedef struct lane {
    ls_blocks blocks;
    int64_t taken;                       /* bytes of the files that were read */
    bool reading;                        /* a thread reads it */
    bool ended;                          /* it has no other block */
    bool spilling;                       /* a thread writes results */
    uint64_t n_read, n_spilled, n_taken; /* blocks */
    data_spill spill;
} lane;

typedef struct pool {
    const data_pipeline *how;
    const data_job_rules *rules;
    const ls_inputs *inputs;
    pthread_mutex_t lock;
    pthread_cond_t can_work, can_take;
    data_job *job;
    size_t n_job;
    lane *lane; /* those of [first, last) are in use, number k at k % n_lane */
    size_t n_lane;
    uint64_t first, last;
    size_t next_input;      /* of the next lane */
    ls_corpus_pos base;     /* after the lanes before the first; the positions of a lane start at 0 */
    const data_job *failed; /* the first job in the order of the corpus that has failed */
    size_t ahead;           /* bytes of text of all jobs */
    int64_t taken;
    bool quit;
    size_t lane_memory;
    spent spent[N_KIND];
    int64_t n_block, n_spilled;
    size_t widest;
} pool;

typedef struct worker {
    pthread_t thread;
    pool *p;
    ls_encoder *encoder;
} worker;

static spent now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (spent){ls_now(), (double)t.tv_sec + 1e-9 * (double)t.tv_nsec};
}

static void add_spent(pool *p, int kind, spent from, spent to)
{
    p->spent[kind].wall += to.wall - from.wall;
    p->spent[kind].cpu += to.cpu - from.cpu;
}

static lane *lane_at(const pool *p, uint64_t k)
{
    return &p->lane[k % p->n_lane];
}

/* ---- all functions below run with the lock held, and release it while they read, process or write ---- */

/* How many lanes to read at the same time: twice the threads that are reading on average, so that a thread seldom finds all lanes busy. */
static size_t width(const pool *p)
{
    const double reading = p->spent[READING].wall, all = reading + p->spent[WORKING].wall;
    size_t n = p->how->files ? (size_t)p->how->files : 1;
    if (!p->how->files && p->n_block >= 4 && all > 0) n += (size_t)(2 * p->how->threads * reading / all);
    if (!p->how->files && n > LANES) n = LANES;
    if (p->lane_memory && n > LANES_MEMORY / p->lane_memory) n = LANES_MEMORY / p->lane_memory;
    if (n > (size_t)p->how->threads) n = (size_t)p->how->threads;
    return n ? n : 1;
}

/* The end of the inputs of a new lane. */
static size_t take_inputs(pool *p)
{
    for (int64_t n = 0; p->next_input < p->inputs->n && n < LANE_BYTES;) n += p->inputs->item[p->next_input++].nbytes;
    return p->next_input;
}

static bool add_lane(pool *p)
{
    if (p->last - p->first == p->n_lane || p->next_input == p->inputs->n) return false;
    if (p->failed && p->failed->lane < p->last) return false; /* it would not be consumed */
    lane *l = lane_at(p, p->last++);
    *l = (lane){0};
    ls_blocks_init(&l->blocks, p->inputs, 0, 0);
    l->blocks.pos.at = p->next_input;
    l->blocks.end = take_inputs(p);
    return true;
}

static data_job *free_job(const pool *p)
{
    for (size_t i = 0; i < p->n_job; i++)
        if (p->job[i].state == DATA_JOB_FREE) return &p->job[i];
    return NULL;
}

/* A lane that can be read now and a job for its next block. */
static bool find_work(pool *p, uint64_t *at, data_job **j)
{
    const size_t n = width(p);
    size_t open = 0;
    *j = free_job(p);
    for (*at = p->first; *j && open < n; ++*at) {
        if (*at == p->last && !add_lane(p)) return false;
        const lane *l = lane_at(p, *at);
        if (p->failed && p->failed->lane < *at) return false;
        if (l->ended) continue;
        open++;
        const bool needed = *at == p->first && l->n_read == l->n_taken; /* nothing else can be consumed */
        if (l->reading || (!needed && p->ahead >= p->n_job * LS_BLOCK_BYTES)) continue;
        if (open > p->widest) p->widest = open;
        return true;
    }
    return false;
}

static void release(pool *p, data_job *j)
{
    if (p->failed == j) p->failed = NULL;
    p->ahead -= j->block.n;
    j->block.n = 0;
    j->state = DATA_JOB_FREE;
    pthread_cond_signal(&p->can_work);
}

static data_job *find_done(const pool *p, uint64_t at, uint64_t seq)
{
    for (size_t i = 0; i < p->n_job; i++) {
        data_job *j = &p->job[i];
        if (j->state == DATA_JOB_DONE && j->lane == at && j->seq == seq) return j;
    }
    return NULL;
}

static bool is_before(const data_job *a, const data_job *b)
{
    return a->lane < b->lane || (a->lane == b->lane && a->seq < b->seq);
}

/* Only the first failure is reported: later jobs are not needed. */
static void end_job(pool *p, data_job *j)
{
    j->state = DATA_JOB_DONE;
    if (j->st != LS_OK && (!p->failed || is_before(j, p->failed))) {
        p->failed = j;
        lane_at(p, j->lane)->ended = true;
        for (size_t i = 0; i < p->n_job; i++)
            if (p->job[i].state == DATA_JOB_DONE && is_before(j, &p->job[i])) release(p, &p->job[i]);
    } else if (p->failed && is_before(p->failed, j)) {
        release(p, j);
    }
    pthread_cond_signal(&p->can_take);
}

/* Writes the finished results of a later lane to its file. */
static void spill_done(pool *p, uint64_t at)
{
    lane *l = lane_at(p, at);
    data_job *j;
    if (l->spilling) return;
    l->spilling = true;
    while (at != p->first && (j = find_done(p, at, l->n_spilled)) && j->st == LS_OK) {
        const bool text = j->block.in->format == LS_TEXT_PLAIN && data_drops_docs(p->rules);
        ls_status st = l->spill.open ? LS_OK : data_spill_open(&l->spill, p->how->dir);
        j->state = DATA_JOB_BUSY;
        pthread_mutex_unlock(&p->lock);
        const spent from = now();
        if (st == LS_OK) st = data_spill_add(&l->spill, j, text);
        if (st != LS_OK) data_job_end(j, st);
        const spent to = now();
        pthread_mutex_lock(&p->lock);
        add_spent(p, SPILLING, from, to);
        if (st != LS_OK) {
            end_job(p, j);
            break;
        }
        l->n_spilled++;
        p->n_spilled++;
        release(p, j);
    }
    l->spilling = false;
    pthread_cond_signal(&p->can_take);
}

/* Reads the next block of a lane; false: it has none. If reading fails, the job has failed: the jobs before it come first. */
static bool read_block(pool *p, lane *l, data_job *j)
{
    bool end = false;
    l->reading = true;
    pthread_mutex_unlock(&p->lock);
    const spent from = now();
    if (j->block.cap > 4 * LS_BLOCK_BYTES) { /* left from a very long line */
        ls_free(j->block.text);
        j->block.text = NULL;
        j->block.cap = 0;
    }
    const ls_status st = ls_blocks_next(&l->blocks, &j->block, &end);
    data_job_end(j, st);
    const int64_t taken = ls_blocks_taken(&l->blocks);
    const size_t memory = l->blocks.source ? ls_byte_stream_memory(l->blocks.source) : 0;
    const spent to = now();
    pthread_mutex_lock(&p->lock);
    add_spent(p, READING, from, to);
    if (memory > p->lane_memory) p->lane_memory = memory;
    p->taken += taken - l->taken;
    l->taken = taken;
    l->reading = false;
    if (st != LS_OK || end) l->ended = true;
    if (st == LS_OK && end) j->block.n = 0;
    else j->seq = l->n_read++;
    p->ahead += j->block.n;
    pthread_cond_signal(&p->can_work);
    pthread_cond_signal(&p->can_take); /* the caller works too */
    return st != LS_OK || !end;
}

static void do_work(pool *p, uint64_t at, data_job *j, ls_encoder *encoder)
{
    j->state = DATA_JOB_BUSY;
    j->lane = at;
    if (!read_block(p, lane_at(p, at), j)) {
        release(p, j);
        return;
    }
    pthread_mutex_unlock(&p->lock);
    const spent from = now();
    data_job_run(j, p->rules, encoder);
    const spent to = now();
    pthread_mutex_lock(&p->lock);
    add_spent(p, WORKING, from, to);
    p->n_block++;
    end_job(p, j);
    spill_done(p, at);
}

static void *work(void *arg)
{
    worker *w = arg;
    pool *p = w->p;
    uint64_t at;
    data_job *j;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        if (find_work(p, &at, &j)) do_work(p, at, j, w->encoder);
        else pthread_cond_wait(&p->can_work, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the caller ---- */

static void add_base(const pool *p, ls_corpus_pos *pos)
{
    pos->n_doc += p->base.n_doc;
    pos->text_bytes += p->base.text_bytes;
    pos->taken_before += p->base.taken_before;
}

/* Consumes the next result of the first lane: *j, or NULL to read it from the file of the lane into `again`. */
static ls_status take(pool *p, data_job *j, data_job *again)
{
    lane *l = lane_at(p, p->first);
    const int64_t taken = p->taken;
    data_job *const x = j ? j : again;
    if (x->st != LS_OK) {
        ls_err_restore(&x->error);
        return x->st;
    }
    pthread_mutex_unlock(&p->lock);
    const spent from = now();
    ls_status st = j ? LS_OK : data_spill_next(&l->spill, again);
    if (st == LS_OK) {
        add_base(p, &x->block.after);
        st = p->how->take(p->how->ctx, x, taken);
    }
    const spent to = now();
    pthread_mutex_lock(&p->lock);
    add_spent(p, TAKING, from, to);
    l->n_taken++;
    if (j) release(p, j);
    return st;
}

static void end_lane(pool *p)
{
    lane *l = lane_at(p, p->first);
    ls_corpus_pos end = l->blocks.pos;
    add_base(p, &end);
    p->base = end;
    ls_blocks_fini(&l->blocks);
    data_spill_close(&l->spill);
    p->first++;
    pthread_cond_broadcast(&p->can_work);
}

static ls_status drive(pool *p, ls_encoder *own, data_job *again)
{
    uint64_t at;
    data_job *j;
    while (p->first < p->last || add_lane(p)) {
        if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "stopped; no file was written");
        const lane *l = lane_at(p, p->first);
        if (l->n_taken < l->n_spilled) LS_TRY(take(p, NULL, again));
        else if ((j = find_done(p, p->first, l->n_taken))) LS_TRY(take(p, j, again));
        else if (l->ended && l->n_taken == l->n_read) end_lane(p);
        else if (find_work(p, &at, &j)) do_work(p, at, j, own);
        else pthread_cond_wait(&p->can_take, &p->lock);
    }
    return LS_OK;
}

static void log_times(const pool *p, double seconds)
{
    double busy = 0;
    for (int k = 0; k < N_KIND; k++) busy += p->spent[k].wall;
    ls_debug("data",
             "CPU seconds: %.2f reading, %.2f processing, %.2f through files, %.2f writing in the first thread; "
             "%.1f of %d threads busy; up to %zu files at a time, %lld of %lld blocks through files",
             p->spent[READING].cpu, p->spent[WORKING].cpu, p->spent[SPILLING].cpu, p->spent[TAKING].cpu, busy / seconds,
             p->how->threads, p->widest, (long long)p->n_spilled, (long long)p->n_block);
}

/* The first lane starts at the position of `blocks`, and has all inputs if they have to be read one after the other. */
static ls_status init(pool *p, ls_blocks *blocks)
{
    const bool alone = !p->rules->tok || blocks->limit_docs || blocks->limit_bytes || p->how->files == 1;
    p->n_job = 3 * (size_t)p->how->threads + 2; /* finished ones wait while the caller processes a block itself */
    p->n_lane = 2 * (size_t)p->how->threads;
    p->job = ls_alloc(p->n_job * sizeof *p->job);
    p->lane = ls_alloc(p->n_lane * sizeof *p->lane);
    if (!p->job || !p->lane) return ls_nomem(p->n_job * sizeof *p->job, "the worker pool");
    p->inputs = blocks->inputs;
    p->next_input = blocks->pos.at;
    const size_t end = take_inputs(p);
    if (alone) p->next_input = p->inputs->n;
    lane *l = lane_at(p, p->last++);
    l->blocks = *blocks;
    l->blocks.end = alone ? p->inputs->n : end;
    l->taken = p->taken = ls_blocks_taken(blocks);
    blocks->source = NULL; /* the lane has them */
    blocks->carry = NULL;
    blocks->n_carry = blocks->cap_carry = 0;
    return LS_OK;
}

static void fini(pool *p, data_job *again)
{
    data_job_fini(again);
    for (size_t i = 0; p->job && i < p->n_job; i++) data_job_fini(&p->job[i]);
    for (; p->first < p->last; p->first++) {
        ls_blocks_fini(&lane_at(p, p->first)->blocks);
        data_spill_close(&lane_at(p, p->first)->spill);
    }
    ls_free(p->job);
    ls_free(p->lane);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->can_work);
    pthread_cond_destroy(&p->can_take);
}

/* The last encoder is that of the calling thread. */
static ls_status start(pool *p, worker *w, int *started)
{
    const int threads = p->how->threads;
    for (int i = 0; i < threads && p->rules->tok; i++) LS_TRY(ls_encoder_create(p->rules->tok, &w[i].encoder));
    for (; *started < threads - 1; ++*started) {
        w[*started].p = p;
        const int rc = pthread_create(&w[*started].thread, NULL, work, &w[*started]);
        if (rc) return ls_fail(LS_E_NOMEM, "cannot start thread %d of %d: %s", *started + 1, threads, strerror(rc));
    }
    return LS_OK;
}

ls_status data_pipeline_run(const data_pipeline *how, ls_blocks *blocks, const data_job_rules *rules)
{
    pool p = {.how = how, .rules = rules};
    data_job again = {0};
    int started = 0;
    const double begin = ls_now();
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.can_work, NULL);
    pthread_cond_init(&p.can_take, NULL);
    worker *w = ls_alloc((size_t)how->threads * sizeof *w);
    ls_status st = w ? init(&p, blocks) : ls_nomem((size_t)how->threads * sizeof *w, "the worker pool");
    if (st == LS_OK) st = start(&p, w, &started);
    pthread_mutex_lock(&p.lock);
    if (st == LS_OK) st = drive(&p, w[how->threads - 1].encoder, &again);
    p.quit = true;
    pthread_cond_broadcast(&p.can_work);
    pthread_mutex_unlock(&p.lock);
    for (int i = 0; i < started; i++) pthread_join(w[i].thread, NULL);
    for (int i = 0; w && i < how->threads; i++) ls_encoder_destroy(&w[i].encoder);
    if (st == LS_OK) {
        blocks->pos = p.base;
        log_times(&p, ls_now() - begin);
    }
    fini(&p, &again);
    ls_free(w);
    return st;
}
