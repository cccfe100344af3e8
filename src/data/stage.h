/* stage.h - a folder that is written under another name and takes the place of the old one as a whole.
 *
 *   DIR.partial/     the new files, while they are written
 *   DIR/             exchanged with it in one system call (renameat2); the old files are removed after that
 *
 * Files of DIR that `prepare` did not write are kept. A folder that cannot be exchanged (a mount point, the current folder, one with folders
 * in it, a file system without the call) is written in DIR/.partial or DIR.partial, and its files are renamed one by one, meta.json first:
 * until the last one is in place, the files do not match meta.json, and training refuses them. */
#ifndef LS_DATA_STAGE_H
#define LS_DATA_STAGE_H

#include "core/err.h"

#include <limits.h>
#include <stdbool.h>

typedef struct data_stage {
    char out[PATH_MAX], dir[PATH_MAX]; /* dir: where to write */
    int lock;
    bool open;
    bool pairs; /* the old folder has pairs of sentences: val.jsonl and test.jsonl are not files of the user */
} data_stage;

/* keep: files of an earlier, unfinished process stay; else they are removed. LS_E_IO; LS_E_CONFIG: another process is writing it. */
ls_status data_stage_open(data_stage *s, const char *out, bool keep);
/* The new files replace the old ones. */
ls_status data_stage_commit(data_stage *s);
ls_status data_stage_clear(const data_stage *s); /* removes what is in dir */
void data_stage_close(data_stage *s, bool keep); /* takes one that could not be opened */

#endif
