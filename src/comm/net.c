/* net.c - communicators over several hosts: shared memory inside a host, messages between hosts.
 *
 * A request: publish in the team's memory → a small message to the counterparts (it checks that all post the same request; small
 * payloads travel with it) → large ones: net_exchange.c → finish in the team's memory. A communicator whose workers are all on one host is
 * local.c's.
 *
 * Sent to other hosts by rank (h, l) (ls_comm_stat.wire; n elements, H teams, L ranks in a team; s = its slice, n/L; s_o = owner o's
 * part of it, s/H; messages' heads are not counted):
 *   all_reduce        (s - s_h) + (H-1) s_h               = 2 (H-1)/H n/L
 *   reduce_scatter    (H-1) n/W          all_gather  (H-1) n/W
 *   reduce            (s - s_h) + s_h in the other teams, s - s_h in the root's;  H = 2: s in the other team
 *   broadcast         s in the root's team, (H-2) s/(H-1) in the others
 *   up to LS_COMM_SMALL bytes: (H-1) n, all_gather (H-1) L n/W, broadcast (H-1) n in the root's team
 *   send              n, to another host
 * Partial sums of 16-bit reals travel as float where a team has made one (L > 1, or small): twice the bytes of what is given, not of results.
 * ls_comm_stat.bytes follows the formulas of every backend (self.c). */
#include "comm/net_impl.h"

#include "core/clock.h"
#include "core/mem.h"

#include <string.h>

/* ---- messages to all counterparts: whether everyone means the same, and payloads that fit beside that ---- */

#define SLICE 0.02 /* seconds between looks at the abort flag */

#define STRIDE (sizeof(local_head) + LS_COMM_SMALL)

void net_post(net_comm *m, ls_net_op *op, bool send, void *buf, int64_t nbytes, int rank, int tag)
{
    LS_ASSERT(nbytes <= INT32_MAX);
    *op = (ls_net_op){.buf = buf, .nbytes = (int)nbytes, .peer = m->member[rank], .tag = m->tag + tag, .send = send};
    m->w->t->post(m->w->net, op);
}

ls_status net_wait(ls_comm *c, const comm_req *r, ls_net_op *const *op, int n)
{
    net_comm *m = c->impl;
    ls_waiting waiting = ls_waiting_begin();
    while (!m->w->t->wait(m->w->net, op, n, SLICE)) {
        const double limit = atomic_load(&c->limit->seconds), waited = ls_waiting_look(&waiting);
        const bool message = r->kind == LS_COLL_SEND || r->kind == LS_COLL_RECV;
        LS_TRY(local_trouble(m->host, r, 0));
        if (limit > 0 && waited > limit) return net_hang(c, r, message ? r->peer : -1, waited);
    }
    for (int i = 0; i < n; i++) {
        char words[400];
        if (op[i]->failed) {
            LS_TRY(local_trouble(m->host, r, 0)); /* the run was aborted: its message names the cause */
            m->w->t->trouble(m->w->net, words, sizeof words);
            return ls_fail(LS_E_COMM, "%s #%llu at %s: %s", ls_coll_word(r->kind), (unsigned long long)r->seq, r->site,
                           words);
        }
        if (!op[i]->send && op[i]->got != op[i]->nbytes && op[i]->tag != m->tag + TAG_TALK)
            return ls_fail(LS_E_COMM, "%s #%llu at %s: received %d bytes, expected %d", ls_coll_word(r->kind),
                           (unsigned long long)r->seq, r->site, op[i]->got, op[i]->nbytes);
    }
    return LS_OK;
}

/* What the counterpart in `team` sent in the last talk: its payload and its head (may be NULL). */
static const char *heard(const net_comm *m, int team, local_head *head)
{
    const char *p = m->talk_in + (size_t)team * STRIDE;
    if (head) memcpy(head, p, sizeof *head);
    return p + sizeof *head;
}

/* A payload of up to LS_COMM_SMALL bytes to every counterpart and one from each (heard); who disagrees is named. */
static ls_status talk(ls_comm *c, comm_req *r, const void *payload, size_t nbytes)
{
    net_comm *m = c->impl;
    local_head h, theirs;
    LS_ASSERT(nbytes <= LS_COMM_SMALL);
    local_describe(r, &h);
    memcpy(m->talk_out, &h, sizeof h);
    if (nbytes) memcpy(m->talk_out + sizeof h, payload, nbytes);
    int n = 0;
    for (int i = 1; i < m->H; i++) {
        const int j = (m->h + i) % m->H;
        ls_net_op *in = &m->op[2 * j], *out = &m->op[2 * j + 1];
        net_post(m, in, false, m->talk_in + (size_t)j * STRIDE, (int64_t)STRIDE, j * m->L + m->l, TAG_TALK);
        net_post(m, out, true, m->talk_out, (int64_t)(sizeof h + nbytes), j * m->L + m->l, TAG_TALK);
        m->list[n++] = in;
        m->list[n++] = out;
        r->wire += (int64_t)nbytes;
    }
    LS_TRY(net_wait(c, r, m->list, n));
    for (int j = 0; j < m->H; j++) {
        if (j == m->h) continue;
        (void)heard(m, j, &theirs);
        const bool whole = r->kind == LS_COLL_BROADCAST || m->op[2 * j].got == (int)(sizeof h + nbytes);
        if (!local_same(&h, &theirs) || !whole) return local_mismatch(&h, c->rank, &theirs, j * m->L + m->l);
    }
    return LS_OK;
}

/* ---- collectives ---- */

static bool small(const comm_req *r)
{
    const int64_t n = r->in.n > r->out.n ? r->in.n : r->out.n;
    const bool sum = r->kind == LS_COLL_ALL_REDUCE || r->kind == LS_COLL_REDUCE;
    return n * (int64_t)ls_dtype_nbytes(sum ? comm_sum_type(r->in.dt) : r->in.dt) <= LS_COMM_SMALL &&
           r->kind != LS_COLL_REDUCE_SCATTER;
}

/* The team's sum of what all its ranks published, summed by each for itself. */
static void team_sum(net_comm *m, const comm_req *r, void *out)
{
    const void *src[MAX_RANK];
    for (int q = 0; q < m->L; q++) src[q] = local_in(m->team, r, q);
    comm_tree_sum(out, comm_sum_type(r->in.dt), src, m->L, r->in.n, r->in.dt);
}

static ls_status small_sum(ls_comm *c, comm_req *r)
{
    net_comm *m = c->impl;
    const ls_dtype wide = comm_sum_type(r->in.dt);
    _Alignas(64) unsigned char mine[LS_COMM_SMALL];
    team_sum(m, r, mine);
    LS_TRY(talk(c, r, mine, (size_t)r->in.n * ls_dtype_nbytes(wide)));
    if (r->kind == LS_COLL_REDUCE && c->rank != r->peer) return LS_OK;
    for (int j = 0; j < m->H; j++) m->src[j] = j == m->h ? (const void *)mine : heard(m, j, NULL);
    comm_tree_sum(r->out.data, r->in.dt, m->src, m->H, r->in.n, wide);
    return LS_OK;
}

static ls_status small_gather(ls_comm *c, comm_req *r, size_t nbytes)
{
    net_comm *m = c->impl;
    const size_t block = nbytes * (size_t)m->L;
    _Alignas(64) unsigned char mine[LS_COMM_SMALL];
    for (int q = 0; q < m->L; q++) memcpy(mine + (size_t)q * nbytes, local_in(m->team, r, q), nbytes);
    LS_TRY(talk(c, r, mine, block));
    const size_t stride = (size_t)r->stride * ls_dtype_nbytes(r->in.dt);
    for (int p = 0; p < c->size; p++) {
        const char *team = p / m->L == m->h ? (const char *)mine : heard(m, p / m->L, NULL);
        memcpy((char *)r->out.data + (size_t)p * stride, team + (size_t)(p % m->L) * nbytes, nbytes);
    }
    return LS_OK;
}

static ls_status small_broadcast(ls_comm *c, comm_req *r, size_t nbytes)
{
    net_comm *m = c->impl;
    const int root_team = r->peer / m->L;
    const char *from = m->h == root_team ? local_in(m->team, r, r->peer % m->L) : NULL;
    LS_TRY(talk(c, r, from, from ? nbytes : 0));
    if (!from) from = heard(m, root_team, NULL);
    if (c->rank != r->peer) memcpy(r->out.data, from, nbytes);
    return LS_OK;
}

static ls_status agree(ls_comm *c, comm_req *r)
{
    net_comm *m = c->impl;
    local_agree(m->team, r);
    LS_TRY(talk(c, r, NULL, 0));
    for (int j = 0; j < m->H; j++) {
        local_head theirs = {.value = r->value};
        if (j != m->h) (void)heard(m, j, &theirs);
        if (theirs.value > r->value) r->value = theirs.value;
    }
    return LS_OK;
}

static ls_status between_hosts(ls_comm *c, comm_req *r)
{
    const size_t nbytes = (size_t)r->in.n * ls_dtype_nbytes(r->in.dt);
    if (r->kind == LS_COLL_AGREE) return agree(c, r);
    if (r->kind == LS_COLL_BARRIER) return talk(c, r, NULL, 0);
    if (small(r) && (r->kind == LS_COLL_ALL_REDUCE || r->kind == LS_COLL_REDUCE)) return small_sum(c, r);
    if (small(r) && r->kind == LS_COLL_ALL_GATHER) return small_gather(c, r, nbytes);
    if (small(r) && r->kind == LS_COLL_BROADCAST) return small_broadcast(c, r, nbytes);
    LS_TRY(talk(c, r, NULL, 0));
    return net_exchange(c, r);
}

/* ---- sends and receives ---- */

#define PIECE  ((int64_t)1 << 20) /* bytes of a message */
#define WINDOW 4                  /* messages in flight */

static ls_status pieces(ls_comm *c, comm_req *r, bool sends, char *data, int64_t nbytes)
{
    net_comm *m = c->impl;
    ls_net_op *op = m->direct[sends], *list[1];
    const int64_t n = (nbytes + PIECE - 1) / PIECE;
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = k * PIECE;
        list[0] = &op[1 + k % WINDOW];
        if (k >= WINDOW) LS_TRY(net_wait(c, r, list, 1));
        net_post(m, list[0], sends, data + at, nbytes - at < PIECE ? nbytes - at : PIECE, r->peer, TAG_DIRECT);
    }
    for (int64_t k = n > WINDOW ? n - WINDOW : 0; k < n; k++) {
        list[0] = &op[1 + k % WINDOW];
        LS_TRY(net_wait(c, r, list, 1));
    }
    return LS_OK;
}

static ls_status direct(ls_comm *c, comm_req *r)
{
    net_comm *m = c->impl;
    const bool sends = r->kind == LS_COLL_SEND;
    const ls_view v = sends ? r->in : r->out;
    const int64_t nbytes = v.n * (int64_t)ls_dtype_nbytes(v.dt);
    local_head h;
    ls_net_op *first = m->direct[sends];
    local_describe(r, &h); /* of a receive: overwritten by what comes */
    net_post(m, first, sends, &h, sizeof h, r->peer, TAG_DIRECT);
    LS_TRY(net_wait(c, r, &first, 1)); /* a head this small leaves at once */
    if (!sends) LS_TRY(local_check_message(r, m->member[c->rank], m->member[r->peer], &h));
    LS_TRY(pieces(c, r, sends, v.data, nbytes));
    if (sends) r->wire = nbytes;
    return LS_OK;
}

static ls_status net_run(ls_comm *c, comm_req *r)
{
    net_comm *m = c->impl;
    r->moved = comm_formula_bytes(c, r);
    r->site = ls_short_path(r->site);
    if (r->kind == LS_COLL_SEND || r->kind == LS_COLL_RECV) {
        if (m->w->host[m->member[r->peer]] != m->w->host[m->w->rank]) return direct(c, r);
        const local *here = m->host->impl;
        comm_req near = *r;
        for (int q = 0; q < m->host->size; q++)
            if (here->label[q] == r->peer) near.peer = q;
        return local_run(m->host, &near);
    }
    if (m->one_host) {
        const int64_t by_formula = r->moved;
        ls_status st = local_run(m->team, r);
        r->moved = by_formula;
        return st;
    }
    if (m->team != m->host) local_note(m->host, r, false);
    r->copy = small(r);
    LS_TRY(local_publish(m->team, r));
    LS_TRY(between_hosts(c, r));
    LS_TRY(local_finish(m->team, r));
    if (m->team != m->host) local_note(m->host, r, true);
    return LS_OK;
}

/* ---- making and ending ---- */

static void *net_alloc(ls_comm *c, size_t nbytes)
{
    return local_alloc(((net_comm *)c->impl)->host, nbytes);
}

static void net_destroy(ls_comm *c);
static ls_status net_split(ls_comm *c, int color, int key, ls_comm **out);

static void abort_all(ls_comm *c, const char *words)
{
    net_abort(((net_comm *)c->impl)->w, words);
}

static const comm_ops net_ops = {.name = "net",
                                 .run = net_run,
                                 .split = net_split,
                                 .alloc = net_alloc,
                                 .abort = abort_all,
                                 .ask = net_ask,
                                 .destroy = net_destroy};

static int count_on(const net_world *w, const int *member, int n, int host)
{
    int k = 0;
    for (int p = 0; p < n; p++) k += w->host[member[p]] == host;
    return k;
}

/* Ranks of a team: L where every host has L consecutive members, a power of two; else 1. */
static int team_size(const net_world *w, const int *member, int n)
{
    LS_ASSERT(member && n > 0);
    const int L = count_on(w, member, n, w->host[member[0]]);
    LS_ASSERT(L > 0);
    if (L == n) return n; /* one host: any number */
    if (n % L || (L & (L - 1))) return 1;
    for (int p = 0; p < n; p++) {
        const int host = w->host[member[p]];
        if (host != w->host[member[p / L * L]] || count_on(w, member, n, host) != L) return 1;
    }
    return L;
}

static void free_comm(net_comm *m)
{
    if (m->team != m->host) ls_comm_destroy(&m->team);
    ls_comm_destroy(&m->host);
    ls_free(m->member);
    ls_free(m->talk_out);
    ls_free(m->talk_in);
    ls_free(m->op);
    ls_free(m->list);
    ls_free(m->src);
    ls_free(m->scratch);
    ls_free(m);
}

static ls_status join_host(net_comm *m, ls_comm *c, int block)
{
    net_world *w = m->w;
    int member[MAX_RANK], label[MAX_RANK], n = 0, mine = 0;
    for (int p = 0; p < c->size; p++) {
        if (w->host[m->member[p]] != w->host[w->rank]) continue;
        if (p == c->rank) mine = n;
        label[n] = p;
        member[n++] = w->local_of[m->member[p]];
    }
    LS_TRY(local_group(w->world, block, member, label, n, mine, &w->used, c, &m->host));
    m->team = m->host;
    if (n != m->L) LS_TRY(local_group(w->world, -1, &w->local_rank, &c->rank, 1, 0, &w->used, c, &m->team));
    for (int k = 0; k < 2; k++) {
        local *l = k ? m->team->impl : m->host->impl;
        l->hang = net_hang;
        l->ctx = c;
    }
    int n_host = 0;
    for (int p = 0; p < c->size; p++) {
        bool first = true;
        for (int q = 0; q < p && first; q++) first = w->host[m->member[q]] != w->host[m->member[p]];
        n_host += first;
    }
    c->world = w->world;
    c->world_rank = w->local_rank;
    c->place = (ls_comm_place){.local_rank = mine, .local_size = n, .n_host = n_host};
    return LS_OK;
}

/* Takes `member`. */
static ls_status make(net_world *w, int *member, int n, int rank, int id, int block, ls_comm **out)
{
    ls_comm *c = NULL;
    ls_status st = comm_create(&net_ops, rank, n, sizeof(net_comm), &c);
    if (st != LS_OK) {
        ls_free(member);
        return st;
    }
    net_comm *m = c->impl;
    c->name = w->t->head.name;
    *m = (net_comm){.w = w, .self = c, .member = member, .id = id, .tag = TAG_FIRST + id * TAGS_OF_ONE};
    m->L = team_size(w, member, n);
    m->H = n / m->L;
    m->one_host = m->H == 1;
    m->h = rank / m->L;
    m->l = rank % m->L;
    const size_t H = (size_t)m->H;
    m->talk_out = ls_alloc(STRIDE);
    m->talk_in = ls_alloc(H * STRIDE);
    m->op = ls_alloc(12 * H * sizeof *m->op);
    m->list = ls_alloc(2 * H * sizeof *m->list);
    m->src = ls_alloc(H * sizeof *m->src);
    if (m->talk_out && m->talk_in && m->op && m->list && m->src) st = join_host(m, c, block);
    else st = ls_nomem(8192 * H, "a communicator");
    if (st != LS_OK) {
        free_comm(m);
        ls_free(c);
        return st;
    }
    pthread_mutex_lock(&w->lock);
    m->next = w->first;
    w->first = c;
    pthread_mutex_unlock(&w->lock);
    *out = c;
    return LS_OK;
}

static void net_destroy(ls_comm *c)
{
    net_comm *m = c->impl;
    net_world *w = m->w;
    pthread_mutex_lock(&w->lock);
    ls_comm **at = &w->first;
    while (*at != c) at = &((net_comm *)(*at)->impl)->next;
    *at = m->next;
    pthread_mutex_unlock(&w->lock);
    c->impl = NULL; /* it may outlive c: a message may be in flight into it until the transport has stopped */
    bool clean = atomic_load(&w->world->aborted) == 0;
    for (int k = 0; k < N_LANE; k++) clean = clean && c->lane[k].failed == LS_OK;
    const bool last = m->id == 0;
    if (last) net_world_stop(w, clean);
    if (clean || last) free_comm(m);
    else m->next_dead = w->dead, w->dead = m;
    while (last && w->dead) {
        net_comm *d = w->dead;
        w->dead = d->next_dead;
        free_comm(d);
    }
    if (last) net_world_free(w);
}

/* Everyone's words (n each) side by side; `all` is in the arena when it is large. */
static ls_status gather(ls_comm *c, int64_t *mine, int n, int64_t *all)
{
    return ls_all_gather(c, (ls_view){all, (int64_t)n * c->size, LS_I64}, (ls_view){mine, n, LS_I64}, LS_SITE, NULL);
}

static ls_status net_split(ls_comm *c, int color, int key, ls_comm **out)
{
    net_comm *parent = c->impl;
    net_world *w = parent->w;
    const size_t nbytes = (size_t)c->size * sizeof(local_wish);
    /* more than LS_COMM_SMALL bytes must be shared memory; it is given back below */
    char *base = local_arena(w->world, w->local_rank);
    local_wish *all = nbytes > LS_COMM_SMALL ? local_arena_take(&w->used, base, w->world->arena_nbytes, nbytes, &nbytes)
                                             : ls_alloc(nbytes);
    int *member = ls_alloc((size_t)c->size * sizeof *member), n = 0, rank = -1, id = 0;
    int *order = ls_alloc((size_t)c->size * sizeof *order);
    ls_status st = all && member && order ? LS_OK : ls_nomem(nbytes, "a communicator");
    st = ls_comm_agree(c, st, LS_SITE);
    LS_ASSERT(st != LS_OK || (all && member && order)); /* all agree: this worker, too */
    local_wish mine = {color, key, w->next_id};
    if (st == LS_OK) st = gather(c, &mine.color, 3, &all[0].color);
    for (int p = 0; p < c->size && st == LS_OK; p++)
        if (all[p].next_id > id) id = (int)all[p].next_id;
    if (st == LS_OK) n = local_order(all, c->size, color, order);
    w->next_id = id + 1;
    int first = -1; /* the first member on this host takes the control block */
    for (int k = 0; k < n; k++) {
        member[k] = parent->member[order[k]];
        if (order[k] == c->rank) rank = k;
        if (first < 0 && w->host[member[k]] == w->host[w->rank]) first = order[k];
    }
    int64_t my_block = -1, *blocks = (int64_t *)(void *)all;
    if (st == LS_OK && first == c->rank) my_block = local_take_control(w->world);
    if (st == LS_OK) st = gather(c, &my_block, 1, blocks);
    if (st == LS_OK && blocks[first] < 0)
        st = ls_fail(LS_E_COMM, "too many communicators on one host; the limit is %d", N_CONTROL);
    if (st == LS_OK) {
        st = make(w, member, n, rank, id, (int)blocks[first], out);
        member = NULL;
    }
    if (st == LS_OK) (*out)->limit = c->limit;
    if (nbytes > LS_COMM_SMALL) local_arena_drop(&w->used, base, &nbytes);
    else ls_free(all);
    ls_free(member);
    ls_free(order);
    return st;
}

ls_status net_world_comm(net_world *w, ls_comm **out)
{
    int *member = ls_alloc((size_t)w->size * sizeof *member);
    if (!member) return ls_nomem((size_t)w->size * sizeof *member, "a communicator");
    for (int p = 0; p < w->size; p++) member[p] = p;
    w->next_id = 1;
    return make(w, member, w->size, w->rank, 0, 0, out);
}
