/* input.h - transfer of micro-batches to the operations.
 *
 * A slot has one micro-batch: what varies between passes (ls_pass_head), ids and targets, in one block of memory.
 * The host fills it. On a device, a copy that runs in parallel with the queue of operations transfers it while the
 * preceding pass computes. Without a device the operations read what the host wrote.
 *
 *   ls_input_open(in, k, &ids, &target)    waits until slot k can be written
 *   ls_input_send(in, k, &mb)              sets ids, target, at and n_counted of mb; sends drop_key and dloss with them
 *   ls_input_used(in, k)                   call after the last operation that reads the slot */
#ifndef LS_MODEL_INPUT_H
#define LS_MODEL_INPUT_H

#include "model/model.h"

typedef struct ls_input {
    const ls_compute *compute;
    int64_t R, nbytes; /* rows and bytes of a slot                        */
    int n_slot;
    int host_row, device_row;
    char *host, *device;  /* equal without a device                          */
    ls_mark *sent, *used; /* per slot: end of its copy; of its last reader   */
} ls_input;

ls_status ls_input_plan(ls_input *in, const ls_compute *c, int64_t R, int n_slot, ls_plan *plan);
void ls_input_bind(ls_input *in, const ls_plan *plan);
void ls_input_fini(ls_input *in);

ls_status ls_input_open(ls_input *in, int slot, int32_t **ids, int32_t **target);
ls_status ls_input_send(ls_input *in, int slot, ls_micro *mb);
ls_status ls_input_used(ls_input *in, int slot);

/* Without targets, and in the queue of operations, so that the copy is recorded with them (compute.h, region_begin): fill writes the slot's
 * values in host memory and sets ids and at of mb; copy is an operation. Operations that read the slot must have ended. */
void ls_input_fill(const ls_input *in, int slot, ls_micro *mb);
ls_status ls_input_copy(const ls_input *in, int slot, const ls_micro *mb);

#endif
