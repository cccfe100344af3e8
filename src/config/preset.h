/* preset.h - command lines of reference trainers (docs/REFERENCES.md) as flags of `lockstep train`: --preset r2, --preset r3.
 *
 * A preset takes the flags of its trainer out of the command line, and puts flags of ours with the same meaning, and the trainer's
 * defaults, before the other arguments, which therefore override them. r3 is --task translate with the translation
 * study's flags (config/r3.h). */
#ifndef LS_CONFIG_PRESET_H
#define LS_CONFIG_PRESET_H

#include "config/options.h"
#include "core/argv.h"

/* With --preset, appends all words of `train` to *out, preset and flags replaced, and sets *p; without, nothing. bench: the benchmark
 * chooses the workers, and where it writes. notes: a line for flags without effect. LS_E_ARG, LS_E_CONFIG. */
ls_status ls_train_preset_words(int argc, char **argv, bool bench, ls_argv *out, ls_train_preset *p, ls_str *notes);

/* Whether the preset ("r2", "r3") takes the flag (a name; - and _ are equal). */
bool ls_train_preset_has(const char *preset, const char *name);

typedef struct preset_flag {
    const char *name; /* with _, which equals - */
    bool alone;       /* a switch; true or false may follow it */
} preset_flag;

/* Moves the values of the flags from argv to value, the other arguments to *rest. A switch without a value has "true". LS_E_ARG. */
ls_status preset_take(int argc, char **argv, const preset_flag *flag, int n, const char **value, ls_argv *rest);

/* inside the folder */

/* A whole number of at least lo, or `otherwise` without text. LS_E_ARG. */
ls_status preset_number(const char *name, const char *text, int64_t lo, int64_t otherwise, int64_t *out);
/* Appends the typed arguments and the rest to the defaults in *out. */
ls_status preset_join(const char *name, ls_argv *out, const ls_argv *typed, const ls_argv *rest, ls_train_preset *p);
/* The strategy comparison's arguments. */
ls_status preset_r2(int argc, char **argv, bool bench, ls_argv *out, ls_train_preset *p, ls_str *notes);
/* The flags of a preset. */
extern const preset_flag preset_r2_flags[], preset_r3_flags[];
extern const int preset_r2_n_flag, preset_r3_n_flag;

#endif
