#include "model/input.h"

#include "core/mem.h"

#define HEAD 64 /* bytes in front of the ids */
_Static_assert(sizeof(ls_pass_head) <= HEAD, "a pass's head fits in front of its ids");

ls_status ls_input_plan(ls_input *in, const ls_compute *c, int64_t R, int n_slot, ls_plan *plan)
{
    *in = (ls_input){.compute = c, .R = R, .n_slot = n_slot, .device_row = -1};
    in->nbytes = (HEAD + 2 * R * (int64_t)sizeof(int32_t) + 63) & ~(int64_t)63;
    in->sent = ls_alloc((size_t)n_slot * sizeof *in->sent);
    in->used = ls_alloc((size_t)n_slot * sizeof *in->used);
    if (!in->sent || !in->used) return ls_nomem((size_t)n_slot * 16, "the inputs");
    in->host_row = ls_plan_add_host(plan, LS_PART_WORK, n_slot * in->nbytes, "inputs");
    if (c->device) in->device_row = ls_plan_add(plan, LS_PART_WORK, n_slot * in->nbytes, LS_PLAN_ALWAYS, "inputs");
    return LS_OK;
}

void ls_input_bind(ls_input *in, const ls_plan *plan)
{
    in->host = ls_plan_at(plan, in->host_row);
    in->device = in->device_row < 0 ? in->host : ls_plan_at(plan, in->device_row);
}

void ls_input_fini(ls_input *in)
{
    ls_free(in->sent);
    ls_free(in->used);
    *in = (ls_input){0};
}

ls_status ls_input_open(ls_input *in, int slot, int32_t **ids, int32_t **target)
{
    const ls_device *d = in->compute->device;
    LS_ASSERT(slot < in->n_slot);
    if (d) LS_TRY(d->wait(d->ctx, in->sent[slot]));
    *ids = (int32_t *)(void *)(in->host + slot * in->nbytes + HEAD);
    *target = *ids + in->R;
    return LS_OK;
}

void ls_input_fill(const ls_input *in, int slot, ls_micro *mb)
{
    char *host = in->host + slot * in->nbytes, *there = in->device + slot * in->nbytes;
    mb->ids = (const int32_t *)(void *)(there + HEAD);
    if (!in->compute->device) return;
    *(ls_pass_head *)(void *)host = (ls_pass_head){.drop_key = mb->drop_key, .dloss = mb->dloss, .pos = mb->pos};
    mb->at = (const ls_pass_head *)(void *)there;
}

ls_status ls_input_copy(const ls_input *in, int slot, const ls_micro *mb)
{
    ls_compute *c = (ls_compute *)(uintptr_t)in->compute;
    return c->ops->copy(c, in->device + slot * in->nbytes, in->host + slot * in->nbytes,
                        HEAD + (size_t)(mb->B * mb->T) * sizeof *mb->ids);
}

ls_status ls_input_send(ls_input *in, int slot, ls_micro *mb)
{
    const ls_device *d = in->compute->device;
    char *host = in->host + slot * in->nbytes, *there = in->device + slot * in->nbytes;
    const int32_t *target = (const int32_t *)(void *)(host + HEAD) + in->R;
    ls_input_fill(in, slot, mb);
    mb->target = mb->ids + in->R;
    mb->n_counted = in->R ? ls_count_targets(target, mb->B * mb->T) : 0;
    if (!d) return LS_OK;
    LS_TRY(d->copy(d->ctx, 0, there, host, (size_t)in->nbytes, in->used[slot], &in->sent[slot]));
    return d->hold(d->ctx, in->sent[slot]);
}

ls_status ls_input_used(ls_input *in, int slot)
{
    const ls_device *d = in->compute->device;
    return d ? d->mark(d->ctx, &in->used[slot]) : LS_OK;
}
