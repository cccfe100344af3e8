#include "comm/lend.h"

#include "comm/local_impl.h"
#include "core/clock.h"
#include "core/mem.h"

#define LEND_AFTER \
    0.002 /* seconds that a worker waits before others take its cores: starting threads does not pay for less */

enum { AT_WORK = 0, FREE = -1 }; /* else held, by world rank + 1 */

typedef struct lender {
    int64_t rank; /* in the world */
    cpu_set_t cpus;
} lender;

struct ls_lend {
    ls_local_world *world;
    int me, n; /* rank in the world; others whose cores this worker may use */
    lender of[MAX_RANK];
    int held[MAX_RANK], n_held; /* of those, the ones that it has borrowed from, in that order */
};

/* Whether no other worker has one of the CPUs of worker p. */
static bool alone(const lender *all, int n, int p)
{
    for (int q = 0; q < n; q++) {
        cpu_set_t both;
        CPU_AND(&both, &all[p].cpus, &all[q].cpus);
        if (q != p && CPU_COUNT(&both)) return false;
    }
    return true;
}

static bool may_use_all(const cpu_set_t *cpus, bool (*may_use)(int cpu))
{
    for (int k = 0; k < CPU_SETSIZE; k++)
        if (CPU_ISSET(k, cpus) && !may_use(k)) return false;
    return CPU_COUNT(cpus) > 0;
}

ls_status ls_lend_open(ls_comm *c, const int *own, int n_own, bool (*may_use)(int cpu), const char *site, ls_lend **out)
{
    lender mine = {.rank = c->world_rank}, *all;
    *out = NULL;
    if (c->size == 1 || !c->world || c->place.n_host > 1) return LS_OK;
    for (int i = 0; i < n_own; i++) CPU_SET(own[i], &mine.cpus);
    atomic_store(&c->world->held[mine.rank], AT_WORK);
    LS_TRY(ls_comm_gather(c, &mine, sizeof mine, site, &all));
    ls_lend *l = ls_alloc(sizeof *l);
    if (!l) return ls_nomem(sizeof *l, "the table of lent cores");
    *l = (ls_lend){.world = c->world, .me = (int)mine.rank};
    for (int p = 0; p < c->size && n_own; p++)
        if (p != c->rank && alone(all, c->size, p) && may_use_all(&all[p].cpus, may_use)) l->of[l->n++] = all[p];
    if (!l->n) ls_lend_close(&l);
    *out = l;
    return LS_OK;
}

void ls_lend_close(ls_lend **l)
{
    ls_free(*l);
    *l = NULL;
}

int ls_lend_take(ls_lend *l, int *cpu, int most)
{
    int n_wait = 0, n = 0;
    for (int i = 0; i < l->n; i++) n_wait += atomic_load(&l->world->held[l->of[i].rank]) != AT_WORK;
    const int n_work = l->n + 1 - n_wait, share = (n_wait + n_work - 1) / n_work;
    const double before = l->n_held < share ? ls_now() - LEND_AFTER : 0;
    int n_cpu = 0;
    for (int i = 0; i < l->n_held; i++) n_cpu += CPU_COUNT(&l->of[l->held[i]].cpus);
    for (int i = 0; i < l->n && l->n_held < share && n_cpu < most; i++) {
        const int64_t p = l->of[i].rank;
        int expected = FREE;
        if (atomic_load(&l->world->free_since[p]) > before) continue;
        if (!atomic_compare_exchange_strong(&l->world->held[p], &expected, l->me + 1)) continue;
        l->held[l->n_held++] = i;
        n_cpu += CPU_COUNT(&l->of[i].cpus);
    }
    for (int i = 0; i < l->n_held; i++)
        for (int k = 0; k < CPU_SETSIZE && n < most; k++)
            if (CPU_ISSET(k, &l->of[l->held[i]].cpus)) cpu[n++] = k;
    return n;
}

void ls_lend_give(ls_lend *l)
{
    for (int i = 0; i < l->n_held; i++) atomic_store(&l->world->held[l->of[l->held[i]].rank], FREE);
    l->n_held = 0;
    atomic_store(&l->world->free_since[l->me], ls_now());
    atomic_store(&l->world->held[l->me], FREE);
}

void ls_lend_back(ls_lend *l)
{
    atomic_store(&l->world->held[l->me], AT_WORK);
}
