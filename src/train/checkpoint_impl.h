/* checkpoint_impl.h - what the checkpoint files share: checksums, folder names, weights bound to a model. */
#ifndef LS_TRAIN_CHECKPOINT_IMPL_H
#define LS_TRAIN_CHECKPOINT_IMPL_H

#include "train/checkpoint.h"
#include "train/safetensors.h"

#define CKPT_CONFIG    "config.json"
#define CKPT_GEN       "generation_config.json"
#define CKPT_TOKENIZER "tokenizer.json"
#define CKPT_MODEL     "model.safetensors"
#define CKPT_INDEX     "model.safetensors.index.json"
#define CKPT_OPTIMIZER "optimizer.safetensors"
#define CKPT_STATE     "trainer_state.json"
#define CKPT_SUMS      "checksums.json"

/* ---- checksums.json (checkpoint_sums.c) ---- */

#define CKPT_MAX_FILE 8
typedef struct ckpt_sums {
    const char *name[CKPT_MAX_FILE]; /* literals */
    ls_sum sum[CKPT_MAX_FILE];
    int n;
} ckpt_sums;
void ckpt_sums_text(const ckpt_sums *s, ls_str *out);
void ckpt_sums_fini(ckpt_sums *s);
/* Compares the listed files of a folder; `only` (may be NULL) restricts to the names it accepts. */
ls_status ckpt_sums_verify(const char *dir, bool (*only)(const char *name));

/* ---- folders of a run (checkpoint_dir.c) ---- */

bool ckpt_name_ok(const char *name);
/* "step-40" with prefix "step-" -> 40; -1 when it is something else. */
int64_t ckpt_number(const char *name, const char *prefix);
/* A fresh, locked .tmp-<name>-<pid> in run_dir; ls_free *tmp, close *lock. */
ls_status ckpt_tmp_open(const char *run_dir, const char *name, char **tmp, int *lock);
/* Puts tmp in the place of run_dir/name in one step. */
ls_status ckpt_publish(const char *run_dir, const char *tmp, const char *name);
/* Removes step-N folders beyond the newest `keep` with N <= step; trouble is a warning. */
void ckpt_prune(const char *run_dir, const char *name, int64_t step, int keep);
/* Removes a tree without touching this thread's error trail. */
void ckpt_remove_quietly(const char *path);
/* The newest whole checkpoint beside `path` with a lower step (or any, below 0); NULL when there is none. */
char *ckpt_older_whole(const char *path, int64_t step);

/* ---- small whole files of a folder being written (checkpoint.c) ---- */

/* Writes dir/name from memory, hashed and synced, and notes it in sums. */
ls_status ckpt_put(ckpt_sums *sums, const char *dir, const char *name, const void *data, size_t n);
/* Copies src to dir/name likewise. */
ls_status ckpt_put_file(ckpt_sums *sums, const char *dir, const char *name, const char *src);

/* ---- weights of a folder, bound to a model (hf.c) ---- */

typedef struct hf_set {
    ls_st_file *file;
    int n_file;
    const ls_st_tensor **src; /* one for each tensor of the model, units in order */
    int n_src;
} hf_set;
ls_status hf_open(hf_set *s, const ls_model *m, const char *dir);
void hf_copy(const hf_set *s, ls_model *m);
void hf_close(hf_set *s);
int hf_n_tensor(const ls_model *m);
/* LS_E_CONFIG unless the tensor of the file has the model's shape. */
ls_status hf_check_shape(const char *file, const ls_st_tensor *src, const ls_tensor *t);

#endif
