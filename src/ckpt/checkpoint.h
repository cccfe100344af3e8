/* checkpoint.h - folders that hold a run at one moment, whole or not at all.
 *
 *   <run>/step-40/ or <run>/epoch-2/
 *     config.json  generation_config.json  tokenizer.json     what transformers opens as it is
 *     model.safetensors                                       "transformer.h.0.attn.c_attn.weight", ...
 *     optimizer.safetensors                                   "m/<tensor>" and "v/<tensor>", when asked for
 *     trainer_state.json                                      format version, step, and the trainer's own object
 *     checksums.json                                          bytes and XXH3 of every file above, by MiB
 *
 * The workers of a run write one folder together, each the pieces of the flat buffers that it holds, and read what they hold
 * from it again: whoever wrote a folder, any strategy and any number of workers can go on from it.
 *
 * Invariants
 *   1. a folder is written as <run>/.tmp-<name>-<pid>, every file synced, the folder synced, then renamed (or exchanged
 *      with the one of the same name): a crash at any moment leaves the old state or the whole new folder;
 *   2. equal models give equal bytes: no times, no paths, no process numbers inside, no trace of who wrote what;
 *   3. nothing is read into a model before every file it comes from was compared with its checksum;
 *   4. older folders are removed only after the new one is in place, and vanish from sight in one rename;
 *   5. a failure of any worker fails all of them, with that worker's words; only a caller's thread communicates. */
#ifndef LS_CKPT_CHECKPOINT_H
#define LS_CKPT_CHECKPOINT_H

#include "comm/comm.h"
#include "core/err.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

#define LS_CKPT_VERSION 2 /* 1, which hashed whole files, is read too */

typedef struct ls_ckpt_job {
    const ls_model *model;
    const ls_piece *piece; /* what this worker writes, copied; NULL: the model's own buffers, whole. Over all workers
                                 * every element below unit->n exactly once; padding is passed over. The data is read
                                 * while the job runs; m and v only with `optimizer`                 */
    int n_piece;
    const char *dir;            /* run folder, made when missing                                     */
    const char *name;           /* "step-40", "epoch-2"; a plain name without '/' or leading '.'      */
    int64_t step;               /* optimizer steps done; `latest` goes by it                         */
    const char *state_json;     /* the trainer's JSON object, kept as it is; NULL: {}                */
    const char *tokenizer_path; /* a tokenizer.json to copy, or NULL                                 */
    bool optimizer;             /* moments too (a checkpoint that can resume)                        */
    int keep_last;              /* step-N folders that stay, this one included; 0: all. epoch-N always stay */
} ls_ckpt_job;

/* One worker writes the folder now. LS_E_ARG (name, state, pieces), LS_E_IO (the words name file and reason), LS_E_NOMEM. On
 * failure the run folder is as before (should the very last sync fail, the new folder is in place but may not outlive a power
 * cut). */
ls_status ls_ckpt_save(const ls_ckpt_job *job);

/* The same on a thread of its own, straight from the buffers (no copy is taken), by one worker or by all of comm together.
 * Between post and wait nobody may write to them: the trainer goes on with forward and backward and waits before the
 * optimizer's step.
 *
 *            post                          thread                        wait
 *   rank 0   folder, files, space ┐        its bytes, small files, sync ┐        checksums, rename, prune ┐
 *   rank r   its pieces checked   ┴agree   its bytes, sync              ┴agree   hashes of blocks         ┴agree
 *
 * Alone, the thread does all of it. create, post and wait are collective over comm (NULL or a world of one: alone); the model
 * is the one of all jobs (alone it may be NULL). */
typedef struct ls_ckpt_writer ls_ckpt_writer;
ls_status ls_ckpt_writer_create(ls_ckpt_writer **out, const ls_model *m, ls_comm *comm);
/* Alone it finishes a posted job first; its failure is lost, so wait before. A job of several workers that was not waited for
 * is given up and its temporary folder removed. */
void ls_ckpt_writer_destroy(ls_ckpt_writer **out);

/* Copies the job's strings and pieces and returns. With a job still running it waits for that one first; if that one failed
 * its status is returned and nothing is posted. */
ls_status ls_ckpt_post(ls_ckpt_writer *w, const ls_ckpt_job *job);

/* Status of the last job, told once: LS_OK when there is none or it was told already. Words and trail of a failure become
 * the caller's. Without a posted job it costs one atomic load and no message. */
ls_status ls_ckpt_wait(ls_ckpt_writer *w);
bool ls_ckpt_busy(const ls_ckpt_writer *w);
/* The thread records its writing there; NULL: no longer. Between jobs only. */
void ls_ckpt_writer_trace(ls_ckpt_writer *w, ls_lane *lane);

/* Fills the pieces (elements beyond unit->n become 0; m and v only with `optimizer`), or with piece NULL the model's own
 * buffers, whole. Compares checksums, format version, the architecture in config.json, names, types and shapes first; only
 * then touches memory. state_json (may be NULL): the trainer's object, ls_free. step (may be NULL). Damage is LS_E_FORMAT:
 * the words name file, byte region and tensors, and the newest older sibling that is whole. LS_E_CONFIG: whole, but not for
 * this model (other shapes, type, no moments). Collective over comm (may be NULL), whose workers share the comparing of
 * checksums; if it fails for one, no worker's memory was touched. All give the same path and the same `optimizer`: a worker
 * without moments has no pieces of them. */
ls_status ls_ckpt_load(const ls_model *m, const char *path, bool optimizer, const ls_piece *piece, int n_piece,
                       ls_comm *comm, char **state_json, int64_t *step);

/* Compares the files with checksums.json, all or those that a load without optimizer reads. No model needed. */
ls_status ls_ckpt_verify(const char *path, bool optimizer);

/* The trainer's object and the step alone, e.g. to build the model of a resumed run; both outputs may be NULL. */
ls_status ls_ckpt_state(const char *path, char **state_json, int64_t *step);

/* True when the folder is one of ours (it holds trainer_state.json or checksums.json). */
bool ls_ckpt_is(const char *path);

/* The folder with the highest step, ls_free; *path = NULL when the run folder is missing or holds none. Contents are
 * compared by load. A folder whose step cannot be read is LS_E_FORMAT, and the words name the newest one that is whole:
 * going back is the user's decision. */
ls_status ls_ckpt_latest(const char *run_dir, char **path);

/* `path` itself when it is a checkpoint or any Hugging Face folder, else the latest below it. LS_E_IO when there is none. */
ls_status ls_ckpt_resolve(const char *path, char **out);

/* What a run that begins afresh finds of an earlier one (any step-N or epoch-N) goes to <run_dir>/earlier-<k>, the first that is free: it is
 * neither overwritten nor pruned nor resumed. *where: that folder, ls_free, NULL when there was nothing; *step: the highest step that could
 * be read, or -1. A missing run folder is fine. LS_E_IO leaves some of them in place. */
ls_status ls_ckpt_set_aside(const char *run_dir, char **where, int64_t *step);

/* Makes the first <run_dir>/earlier-<k> that is free; *path: ls_free. */
ls_status ls_ckpt_earlier_folder(const char *run_dir, char **path);

/* Removes what a killed writer left (.tmp-*, .del-*; not those of a living one) and puts back a folder caught between two
 * renames. Called by save; a run calls it at its start. A missing run folder is fine. */
ls_status ls_ckpt_clean(const char *run_dir);

#endif
