/* device_choice.h - where a command computes: --device, else LS_DEVICE, else auto.
 *
 *   cpu       the CPU
 *   cuda      a GPU for each worker of a host, by its local rank, round robin; cuda:N: the N-th for all of them
 *   auto      cuda where the plugin can use a GPU, else the CPU; the reason is kept in words
 *
 * A child process looks at the GPU (compute/look.h), so that the caller may fork workers afterwards. Workers of a launcher each look
 * for themselves and then agree: all of them compute on GPUs, or none. */
#ifndef LS_CONFIG_DEVICE_CHOICE_H
#define LS_CONFIG_DEVICE_CHOICE_H

#include "comm/comm.h"
#include "compute/card.h"

#define LS_DEVICE_WORDS 384

typedef struct ls_device_choice {
    bool cuda;
    int index;                 /* of cuda:N; -1: by the local rank                                               */
    bool automatic;            /* auto chose                                                                     */
    char asked[16];            /* "cpu", "cuda", "cuda:N", "auto"                                                */
    const char *from;          /* "--device", "LS_DEVICE", "": nobody said                                       */
    char why[LS_DEVICE_WORDS]; /* auto looked for a GPU and took the CPU: the reason; else ""                    */
    bool expected;             /* auto took the CPU although the machine has a GPU: users must read the reason    */
    bool accepted;             /* expected, and nothing can mend it                                                */
    char words
        [LS_DEVICE_WORDS]; /* "CUDA, NVIDIA H200 (1 of 1 visible)", "CPU (no CUDA plugin: …)", "CPU (--device cpu)" */
    char gpu[96], bus[24]; /* the GPU found                                                                  */
    char older[96];        /* "; code of 7.5: LS_CUDA_ARCH=90a ./run build makes its own"; "": nothing is lost  */
    int visible;           /* auto: GPUs that this process sees                                              */
    const ls_card *card;   /* what the GPU found can do with the code of the plugin; NULL: not known         */
    char lacks[LS_DEVICE_WORDS]; /* "NVIDIA T4 has 7.5": its capability, or that of the code, for refusals   */
} ls_device_choice;

/* What `text` of `from` says; auto, for which nobody looks here, is the CPU. LS_E_ARG. */
ls_status ls_device_parse(const char *from, const char *text, ls_device_choice *out);

/* asked: the text of --device, NULL: not given. cpu_only: an option that was given and that the CPU alone has ("--compute"), so that auto is the
 * CPU; NULL: none. `workers` of this host share the GPUs, and this process is local_rank of them. LS_E_ARG; LS_E_UNSUPPORTED: cuda, and the GPU
 * that it chooses cannot be used. Without any GPU cuda is not refused here: a command may only print what it would do. */
ls_status ls_device_choose(const char *asked, const char *cpu_only, int workers, int local_rank, ls_device_choice *out);

/* One device for all workers. LS_E_CONFIG, the same on every rank, where some would take a GPU and some the CPU. Collective over c. */
ls_status ls_device_agree(ls_device_choice *d, ls_comm *c);

/* How a refusal of what the CPU cannot do goes on: what would give it a GPU, or why auto found none. */
const char *ls_device_no_gpu(const ls_device_choice *d, char buf[LS_DEVICE_WORDS]);

#endif
