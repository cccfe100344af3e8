/* input.h - micro-batches on their way to the operations.
 *
 * A slot is one micro-batch: what varies between passes (ls_pass_head), ids and targets, side by side. The host fills it; on a device a
 * copy beside the queue of operations carries it over, so that it travels while the pass before it computes. Without a device the
 * operations read what the host wrote.
 *
 *   ls_input_open(in, k, &ids, &target)    waits until slot k can be written
 *   ls_input_send(in, k, &mb)              mb.ids, target, at, n_counted; drop_key and dloss go with it
 *   ls_input_used(in, k)                   behind the last operation that reads it
 */
#ifndef LS_MODEL_INPUT_H
#define LS_MODEL_INPUT_H

#include "model/model.h"

typedef struct ls_input {
    const ls_compute *compute;
    int64_t R, nbytes; /* rows and bytes of a slot                          */
    int n_slot;
    int host_row, device_row;
    char *host, *device;  /* the same without a device                      */
    ls_mark *sent, *used; /* by slot: its copy; what reads it               */
} ls_input;

ls_status ls_input_plan(ls_input *in, const ls_compute *c, int64_t R, int n_slot, ls_plan *plan);
void ls_input_bind(ls_input *in, const ls_plan *plan);
void ls_input_fini(ls_input *in);

ls_status ls_input_open(ls_input *in, int slot, int32_t **ids, int32_t **target);
ls_status ls_input_send(ls_input *in, int slot, ls_micro *mb);
ls_status ls_input_used(ls_input *in, int slot);

#endif
