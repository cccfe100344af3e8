#include "config/preset.h"
#include "config/r3.h"

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

/* R3's flags, for the translation task; a benchmark sets the number of workers itself. */
static ls_status preset_r3(int argc, char **argv, bool bench, ls_argv *out)
{
    static char task[] = "--task=translate", length[] = "--model_max_length=128"; /* any flag of R3 sets its defaults */
    ls_argv all = {0}, words = {0};
    ls_status st = ls_argv_add(&all, length);
    for (int i = 0; i < argc && st == LS_OK; i++) {
        if (bench && after_name(argv[i], "world_size"))
            st = ls_fail(LS_E_ARG,
                         "--world_size is not allowed in the train options of a benchmark; give -n to bench instead");
        else st = ls_argv_add(&all, argv[i]);
    }
    if (st == LS_OK) st = ls_train_r3_words(all.n, all.word, &words);
    if (st == LS_OK) st = ls_argv_add(out, task);
    for (int i = 0; i < words.n && st == LS_OK; i++)
        if (!bench || strncmp(words.word[i], "--n=", 4) != 0) st = ls_argv_add(out, words.word[i]);
    ls_argv_fini(&all);
    ls_argv_fini(&words);
    return st;
}

ls_status ls_train_preset_words(int argc, char **argv, bool bench, ls_argv *out, ls_str *notes)
{
    static const preset_flag flag = {.name = "preset"};
    const char *name = NULL;
    ls_argv rest = {0};
    ls_status st = preset_take(argc, argv, &flag, 1, &name, &rest);
    const bool r2 = name && !strcmp(name, "r2"), r3 = name && !strcmp(name, "r3");
    if (st == LS_OK && r2) st = preset_r2(rest.n, rest.word, bench, out, notes);
    if (st == LS_OK && r3) st = preset_r3(rest.n, rest.word, bench, out);
    if (st == LS_OK && name && !r2 && !r3) st = ls_fail(LS_E_ARG, "--preset '%.40s': must be r2 or r3", name);
    ls_argv_fini(&rest);
    return st;
}
