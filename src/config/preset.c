#include "config/preset.h"
#include "config/r3.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Whether the word is --name or --name=...; - and _ are equal. Returns what is after the name. */
static const char *after_name(const char *word, const char *name)
{
    const size_t n = strlen(name);
    if (word[0] != '-' || word[1] != '-') return NULL;
    for (size_t i = 0; i < n; i++)
        if (word[2 + i] != name[i] && !(word[2 + i] == '-' && name[i] == '_')) return NULL;
    return word[2 + n] == '\0' || word[2 + n] == '=' ? word + 2 + n : NULL;
}

static bool is_truth(const char *word)
{
    return !strcasecmp(word, "true") || !strcasecmp(word, "false");
}

ls_status preset_take(int argc, char **argv, const preset_flag *flag, int n, const char **value, ls_argv *rest)
{
    for (int i = 0; i < argc; i++) {
        int f = 0;
        const char *end = NULL;
        while (f < n && !(end = after_name(argv[i], flag[f].name))) f++;
        if (f == n) {
            LS_TRY(ls_argv_add(rest, argv[i]));
            continue;
        }
        const bool next = i + 1 < argc && (!flag[f].alone || is_truth(argv[i + 1]));
        if (*end) value[f] = end + 1;
        else if (next) value[f] = argv[++i];
        else if (flag[f].alone) value[f] = "true";
        else return ls_fail(LS_E_ARG, "--%s needs a value", flag[f].name);
    }
    return LS_OK;
}

ls_status preset_number(const char *name, const char *text, int64_t lo, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!text || (ls_parse_i64(text, out) && *out >= lo && *out <= 1 << 30)) return LS_OK;
    return ls_fail(LS_E_ARG, "--%s '%s': must be a number of at least %lld", name, text, (long long)lo);
}

bool ls_train_preset_has(const char *preset, const char *name)
{
    const bool r2 = !strcmp(preset, "r2");
    const preset_flag *flag = r2 ? preset_r2_flags : preset_r3_flags;
    const int n = r2 ? preset_r2_n_flag : preset_r3_n_flag;
    char word[80];
    snprintf(word, sizeof word, "--%.76s", name);
    for (int i = 0; i < n; i++)
        if (after_name(word, flag[i].name)) return true;
    return false;
}

ls_status preset_join(const char *name, ls_argv *out, const ls_argv *typed, const ls_argv *rest, ls_train_preset *p)
{
    *p = (ls_train_preset){name, out->n};
    LS_TRY(ls_argv_add_all(out, typed));
    return ls_argv_add_all(out, rest);
}

/* The translation study's flags, for the translation task; a benchmark sets the number of workers itself. */
static ls_status preset_r3(int argc, char **argv, bool bench, ls_argv *out, ls_train_preset *p)
{
    ls_argv words = {0};
    for (int i = 0; i < argc && bench; i++)
        if (after_name(argv[i], "world_size"))
            return ls_fail(LS_E_ARG,
                           "--world_size is not allowed in the train options of a benchmark; give -n to bench instead");
    ls_status st = ls_train_r3_words(argc, argv, true, &words, p);
    if (st == LS_OK) st = ls_argv_add(out, "--task=translate");
    const int n_default = p->n_default++; /* the task */
    for (int i = 0; i < words.n && st == LS_OK; i++) {
        if (!bench || strncmp(words.word[i], "--n=", 4) != 0) st = ls_argv_add(out, words.word[i]);
        else if (i < n_default) p->n_default--;
    }
    ls_argv_fini(&words);
    return st;
}

ls_status ls_train_preset_words(int argc, char **argv, bool bench, ls_argv *out, ls_train_preset *p, ls_str *notes)
{
    static const preset_flag flag = {.name = "preset"};
    const char *name = NULL;
    ls_argv rest = {0};
    *p = (ls_train_preset){0};
    ls_status st = preset_take(argc, argv, &flag, 1, &name, &rest);
    const bool r2 = name && !strcmp(name, "r2"), r3 = name && !strcmp(name, "r3");
    if (st == LS_OK && r2) st = preset_r2(rest.n, rest.word, bench, out, p, notes);
    if (st == LS_OK && r3) st = preset_r3(rest.n, rest.word, bench, out, p);
    if (st == LS_OK && name && !r2 && !r3) st = ls_fail(LS_E_ARG, "--preset '%.40s': must be r2 or r3", name);
    ls_argv_fini(&rest);
    return st;
}
