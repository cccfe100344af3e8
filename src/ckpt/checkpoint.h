/* checkpoint.h - checkpoint folders, written atomically.
 *
 *   <run>/step-40/ or <run>/epoch-2/
 *     config.json  generation_config.json  tokenizer.json     read by transformers directly
 *     model.safetensors                                       "transformer.h.0.attn.c_attn.weight", ...
 *     optimizer.safetensors                                   "m/<tensor>" and "v/<tensor>", optional
 *     trainer_state.json                                      format version, step, and the state of the trainer
 *     timings.json                                            what the trainer measured, optional; not in the list
 *     checksums.json                                          size of every file above, and XXH3 per MiB
 *
 * The workers of a run write one folder together: each writes and reads the pieces of the flat buffers that it owns. Any strategy with
 * any number of workers can continue from any checkpoint.
 *
 * Invariants
 *   1. a folder is written as <run>/.tmp-<name>-<pid>, every file synced, the folder synced, then renamed (or exchanged
 *      with the one of the same name): after a crash at any time the old state or the complete new folder exists;
 *   2. equal models give equal bytes: files have no times (except timings.json), paths or process ids, and do not depend on which worker
 *      wrote them;
 *   3. a model is changed only after all its files match their checksums;
 *   4. older folders are removed only after the new one is in place (with `verify`: was read back and matches), and are renamed before
 *      they are deleted;
 *   5. a failure of one worker fails all of them with its message; only the calling thread communicates. */
#ifndef LS_CKPT_CHECKPOINT_H
#define LS_CKPT_CHECKPOINT_H

#include "comm/comm.h"
#include "core/err.h"
#include "model/model.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define LS_CKPT_VERSION 2 /* 1, which hashed whole files, is read too */

/* All workers together write every element below unit->n exactly once; padding is skipped. */
typedef struct ls_ckpt_job {
    const ls_model *model;
    const ls_piece *piece; /* what this worker writes, read while the job runs; NULL: all buffers of the model */
    int n_piece;
    const char *dir;            /* run folder, created if missing                                    */
    const char *name;           /* "step-40", "epoch-2"; a plain name without '/' or leading '.'      */
    int64_t step;               /* optimizer steps done; `latest` uses it                            */
    const char *state_json;     /* JSON object of the trainer, stored unchanged; NULL: {}            */
    const char *timings_json;   /* text of timings.json, or NULL                                     */
    const char *tokenizer_path; /* a tokenizer.json, or a folder with vocab.json and merges.txt, to copy; or NULL */
    bool optimizer;             /* include the moments, which a resumed run needs                    */
    bool verify;       /* read it back from the disk, in the background; if it differs it becomes damaged-<name> */
    bool hold;         /* post: it is not renamed into place before ls_ckpt_confirm          */
    int keep_last;     /* number of step-N folders to keep, with this one; 0: all. epoch-N are always kept */
    double keep_hours; /* and those that are younger, whatever their number                 */
} ls_ckpt_job;

/* One worker writes the folder and returns. LS_E_ARG (name, state, pieces), LS_E_IO (the message has file and reason), LS_E_NOMEM. On
 * failure the run folder is unchanged (if only the last sync fails, the new folder exists but may be lost in a power
 * failure). */
ls_status ls_ckpt_save(const ls_ckpt_job *job);

/* The same on a separate thread, by one worker or by all workers of comm, directly from the buffers or from a copy of them.
 *
 *   directly   The buffers must not change between post and wait: the trainer continues with forward and backward and waits before the
 *              optimizer step.
 *   with room  (ls_ckpt_writer_room) They must not change between post and wait_buffers, which copies what is not written yet
 *              to the room. The trainer goes on with later steps; at each it lets the workers meet if they can (advance), so that
 *              nobody waits for the disk. Device memory is copied first.
 *
 *            post                          thread                        meet (wait, or advance)
 *   rank 0   its pieces checked   ┐        folder, files, space         ┐
 *   rank r   its pieces checked   ┴agree                                ┴agree
 *   rank 0                                 its bytes, small files, sync ┐
 *   rank r                                 its bytes, sync              ┴agree, known hashes of blocks
 *   rank 0                                 rest of the hashes           ┐
 *   rank r                                 rest of the hashes           ┴agree, all hashes
 *   rank 0                                 checksums, rename            ┐
 *   rank r                                                              ┴agree
 *   rank 0                                 read back, prune
 *
 * Without room, post waits for the folder. With room, a worker that sees the files of rank 0 before its buffers
 * change writes them before the first meeting. A single worker does everything on the thread. create, post,
 * wait, advance and settle are collective over comm (NULL or one worker: single); all jobs are for model m. */
typedef struct ls_ckpt_writer ls_ckpt_writer;
ls_status ls_ckpt_writer_create(ls_ckpt_writer **out, const ls_model *m, ls_comm *comm);
/* A single worker finishes a posted job first; call wait before to get its status. A pending job of several workers, and one that is held, is
 * dropped and its temporary folder removed. */
void ls_ckpt_writer_destroy(ls_ckpt_writer **out);
/* Memory for a copy of all that this worker writes (a disk may be slow), in use until destroy; pinned if the model is on a device. On all workers or none;
 * before the first post. */
void ls_ckpt_writer_room(ls_ckpt_writer *w, void *room, int64_t nbytes);

/* Waits for a running job first; if that job failed, returns its status and posts nothing. Copies name and the two texts; what else the
 * job points to must stay until the next post or destroy. */
ls_status ls_ckpt_post(ls_ckpt_writer *w, const ls_ckpt_job *job);

/* Waits for the last job and returns its status once; LS_OK if there is none or it was already returned. One that is held is waited for until
 * only its rename is left, and stays in flight. A slow disk is waited for without a limit. The error message and trail are passed to the caller. Without a posted job it costs one atomic load and no communication. */
ls_status ls_ckpt_wait(ls_ckpt_writer *w);
/* Waits until the buffers may change: with room copies what is not written yet, else as ls_ckpt_wait. */
ls_status ls_ckpt_wait_buffers(ls_ckpt_writer *w);
/* The job is not held any more. Called by all workers at the same place in the order of their messages. */
void ls_ckpt_confirm(ls_ckpt_writer *w);
/* in_flight: a job was posted and its status not returned; the same on all workers. busy: this worker's thread has work left. advance, when
 * no worker is busy, lets them meet; returns the status of the job when that ends it. It does not wait. */
bool ls_ckpt_in_flight(const ls_ckpt_writer *w);
bool ls_ckpt_busy(const ls_ckpt_writer *w);
ls_status ls_ckpt_advance(ls_ckpt_writer *w);
/* Waits for the last job, and until it was read back; LS_E_IO if it is damaged. */
ls_status ls_ckpt_settle(ls_ckpt_writer *w);

/* The last checkpoint that was damaged when it was read back, on rank 0; true once for each. Without one it costs one atomic load. */
typedef struct ls_ckpt_bad {
    char name[256], reason[1024];
    int64_t step;
} ls_ckpt_bad;
bool ls_ckpt_take_bad(ls_ckpt_writer *w, ls_ckpt_bad *bad);
/* Bytes of the weight files of a checkpoint. */
int64_t ls_ckpt_writer_nbytes(const ls_ckpt_writer *w);
/* Trace lane for the writes of the thread; NULL stops tracing. Call it only between jobs. */
void ls_ckpt_writer_trace(ls_ckpt_writer *w, ls_lane *lane);

/* Fills the pieces (elements beyond unit->n become 0; m and v only with `optimizer`), or all buffers of the model if piece is
 * NULL. Before it writes to memory it checks checksums, format version, architecture in config.json, names, types and shapes.
 * state_json (may be NULL): state of the trainer, free it with ls_free. step may be NULL. LS_E_FORMAT: the folder is damaged; the
 * message names file, byte range, tensors and the newest older complete checkpoint. LS_E_CONFIG: the checkpoint is for another
 * model (shapes, type, no optimizer state). Collective over comm (may be NULL); its workers share the checksum work. If it fails
 * on one worker, no memory is changed on any. All workers pass the same path and `optimizer`; a worker without moments passes
 * no pieces of them. */
ls_status ls_ckpt_load(const ls_model *m, const char *path, bool optimizer, const ls_piece *piece, int n_piece,
                       ls_comm *comm, char **state_json, int64_t *step);

/* Compares the files with checksums.json: all, or those that a load without optimizer reads. Needs no model. */
ls_status ls_ckpt_verify(const char *path, bool optimizer);

/* Reads only the state of the trainer and the step, e.g. to build the model of a resumed run; both outputs may be NULL. */
ls_status ls_ckpt_state(const char *path, char **state_json, int64_t *step);

/* The text of timings.json, to be freed; NULL if there is none, or none that can be read. */
char *ls_ckpt_timings(const char *path);

/* True if the folder is a lockstep checkpoint (it has trainer_state.json or checksums.json). */
bool ls_ckpt_is(const char *path);

/* The folder with the highest step (free it with ls_free); *path = NULL if the run folder is missing or has none. Load checks the
 * contents. One whose state cannot be read is passed over with a warning if it is older by its name (step-N; epoch-N before a later epoch). Else
 * LS_E_FORMAT; the message names the newest complete checkpoint, and the user decides whether to use it. */
ls_status ls_ckpt_latest(const char *run_dir, char **path);
/* One whose config.json can be read, for the model of the run, which is that of all its checkpoints: newer ones first, then those in the memory of this
 * host, and those that ls_ckpt_clean would restore. NULL: none. Changes nothing: the run may be alive. */
ls_status ls_ckpt_any(const char *run_dir, char **path);

/* The newest one whose files exist and match their checksums, which reads all its bytes; *path = NULL if there is none. Damaged
 * ones are passed over; skipped (may be NULL) gets a line for each that is newer, and for each whose step cannot be read: file and
 * reason. Changes nothing. LS_E_IO if the run folder, or a checkpoint, cannot be read; unreadable: such checkpoints are passed over, too. */
ls_status ls_ckpt_newest_whole(const char *run_dir, bool unreadable, char **path, ls_str *skipped);
/* Renames the checkpoints that ls_ckpt_latest would prefer to `path` (NULL: all) to damaged-<name>, so that a run resumes from `path`. */
ls_status ls_ckpt_reject(const char *run_dir, const char *path);

/* Folders for checkpoints in the memory of every host of a run, used as the `dir` of jobs: they outlive the processes of the run, and only
 * this user can read them. */
enum { LS_CKPT_MEMORY_ID = 16 };
typedef struct ls_ckpt_memory {
    char id[LS_CKPT_MEMORY_ID + 1]; /* the same on all workers; "": the run has none */
    char dir[PATH_MAX];             /* the one of this host                          */
    bool here;                      /* it exists                                     */
    bool any;                       /* that of a host exists                         */
    int64_t step;                   /* of the newest whole copy of any host when the run was resumed; -1: none */
    bool first, leads; /* this worker is rank 0; is the first one of its host, which makes and removes the folder */
    int lock;          /* of a worker that leads: a descriptor + 1; 0: none */
} ls_ckpt_memory;
/* What the run has; the folders are not removed by other runs until close. Collective over comm (NULL: one worker). */
ls_status ls_ckpt_memory_look(ls_ckpt_memory *m, const char *run_dir, ls_comm *comm);
/* After look: makes folders that are missing. nbytes: of one checkpoint; each host has room for two of them, or LS_E_NOMEM: copies that
 * hosts had before stay. Collective. */
ls_status ls_ckpt_memory_open(ls_ckpt_memory *m, const char *run_dir, int64_t nbytes, ls_comm *comm);
void ls_ckpt_memory_close(ls_ckpt_memory *m);
/* Removes the folder of this host, and that the run has any. */
void ls_ckpt_memory_drop(ls_ckpt_memory *m, const char *run_dir);
/* Removes what other runs of this user have left on this host: those that no process works for. */
void ls_ckpt_memory_sweep(const ls_ckpt_memory *m);
/* Without workers: the folder of this host, false if there is none. */
bool ls_ckpt_memory_find(const char *run_dir, char dir[PATH_MAX]);
/* The step of the newest copy that all hosts have, for a supervisor, which may run elsewhere; -1: not known. */
void ls_ckpt_memory_note(const ls_ckpt_memory *m, const char *run_dir, int64_t step);
int64_t ls_ckpt_memory_noted(const char *run_dir);

/* Writes the checkpoint once on every host, to its own job->dir, from the buffers as they are now; waits until all have it. The workers send
 * their parts to rank 0 in bounded pieces, and it sends the whole to the others, who compare the checksums. It has a temporary name until it is
 * published; then earlier ones are removed. LS_E_IO: no host has it. One that is not published is dropped by destroy. Collective
 * over the communicator of w; needs no wait for posted jobs. */
ls_status ls_ckpt_write_beside(ls_ckpt_writer *w, const ls_ckpt_job *job);
ls_status ls_ckpt_publish_beside(ls_ckpt_writer *w); /* after a write that succeeded */

/* As ls_ckpt_latest, for a resumed run: a whole one in the memory of any host if none on the disk is newer (ls_ckpt_newest_whole regards those of this host).
 * Hosts without it get a copy. m is filled by look. *path is that of this host's copy, of the same checkpoint on all workers, or of one on
 * the disk; NULL: none. Collective over comm (NULL: one worker). */
ls_status ls_ckpt_latest_any(ls_comm *comm, const char *run_dir, ls_ckpt_memory *m, char **path);

/* `path` if it is a checkpoint, a Hugging Face folder or a model file of llm.c, else the latest checkpoint in it. A path that does not
 * exist is the name of a model in the Hugging Face cache ("gpt2"). LS_E_IO if there is none; the message has what to download. option:
 * the one that gave the path ("--checkpoint"), for messages. */
ls_status ls_ckpt_resolve(const char *option, const char *path, char **out);

/* The model of a resolved path. */
ls_status ls_ckpt_config(const char *path, ls_model_config *out);
/* Its folder: the path itself, or the folder of a model file of llm.c. */
ls_status ls_ckpt_folder(const char *path, char dir[PATH_MAX]);
/* The tokenizer in that folder, as in ls_ckpt_job: tokenizer.json, or the folder if it has vocab.json and merges.txt. "": none. */
ls_status ls_ckpt_tokenizer(const char *path, char file[PATH_MAX]);

/* Called by a new run: moves existing step-N and epoch-N folders to <run_dir>/earlier-<k>, the first unused name, where they are not
 * overwritten, pruned or resumed. where: that folder, "" if there was nothing to move; *step: the highest readable step,
 * or -1. A missing run folder is not an error. After LS_E_IO some folders may not be moved. */
ls_status ls_ckpt_set_aside(const char *run_dir, char where[PATH_MAX], int64_t *step);

/* Removes files of a killed writer (.tmp-*, .del-*, not those of a live one) and restores a folder from an interrupted rename.
 * Called by save and at the start of a run. A missing run folder is not an error. */
ls_status ls_ckpt_clean(const char *run_dir);

#endif
