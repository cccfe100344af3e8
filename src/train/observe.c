#include "train/observe.h"

#include "train/trainer.h"

ls_status ls_observer_add(ls_trainer *t, ls_observer o)
{
    ls_observers *all = &t->observers;
    if (all->n == LS_MAX_OBSERVER)
        return ls_fail(LS_E_ARG, "too many observers of a run; at most %d are allowed", LS_MAX_OBSERVER);
    all->each[all->n++] = o;
    return LS_OK;
}

ls_status ls_observe(ls_trainer *t, const ls_event *e)
{
    for (int i = 0; i < t->observers.n; i++) LS_TRY(t->observers.each[i].see(t->observers.each[i].ctx, t, e));
    return LS_OK;
}

const char *ls_phase_name(ls_phase p)
{
    static const char *const names[LS_N_PHASE] = {
#define X(phase, name) [phase] = name,
        LS_PHASE_LIST(X)
#undef X
    };
    return names[p];
}
