/* bench_differs.c - the settings in which the two sides of `bench ab` differ, as far as the runs record them: what was asked for, and also
 * the GPU, the host, the number of threads and the versions, which are not asked for and can explain a difference. */
#include "cli/bench_impl.h"

/* Of one side: an object of keys, each an object whose names are the values of the runs. */
static json_t *values_of(const bench_pairs *p, int side)
{
    json_t *all = json_object();
    for (int i = 0; i < p->n; i++)
        for (const char *line = p->pair[i].run[side]->setting; *line;) {
            const size_t n = strcspn(line, "\n"), key = strcspn(line, " ");
            char *name = ls_strndup(line, key < n ? key : n),
                 *value = key < n ? ls_strndup(line + key + 1, n - key - 1) : NULL;
            json_t *values = name ? json_object_get(all, name) : NULL;
            if (name && !values && !json_object_set_new(all, name, json_object())) values = json_object_get(all, name);
            if (values && value) json_object_set_new(values, value, json_true());
            ls_free(name);
            ls_free(value);
            line += n + (line[n] == '\n');
        }
    return all;
}

static json_t *names_of(const json_t *values)
{
    json_t *list = json_array(), *v;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)values, name, v) json_array_append_new(list, json_string(name));
    return list;
}

static void add_differences(const json_t *from, const json_t *a, const json_t *b, json_t *out)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)from, key, v)
    {
        const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
        if (json_object_get(out, key) || (x && y && json_equal(x, y))) continue;
        json_object_set_new(out, key, json_pack("{so so}", "a", names_of(x), "b", names_of(y)));
    }
}

json_t *cli_bench_differences(const bench_pairs *p)
{
    json_t *a = values_of(p, 0), *b = values_of(p, 1), *out = json_object();
    add_differences(a, a, b, out);
    add_differences(b, a, b, out);
    json_decref(a);
    json_decref(b);
    return out;
}

static void add_values(ls_str *out, const json_t *list)
{
    if (!json_array_size(list)) ls_str_add(out, "not set");
    for (size_t i = 0; i < json_array_size(list); i++)
        ls_str_addf(out, "%s%s", i ? " and " : "", json_string_value(json_array_get(list, i)));
}

void cli_bench_difference_words(const json_t *all, ls_str *out)
{
    static const char *const machine[] = {"gpu", "host", "nodes"};
    const char *key;
    json_t *v;
    int n = 0;
    json_object_foreach((json_t *)(uintptr_t)all, key, v)
    {
        ls_str_addf(out, "%s%s (A: ", n++ ? ", " : "Settings that differ: ", key);
        add_values(out, json_object_get(v, "a"));
        ls_str_add(out, "; B: ");
        add_values(out, json_object_get(v, "b"));
        ls_str_addc(out, ')');
    }
    if (n) ls_str_add(out, ".\n");
    for (size_t i = 0; i < CLI_COUNT(machine); i++)
        if (json_object_get(all, machine[i])) {
            ls_str_add(out, "A and B ran on different machines: the difference may come from them.\n");
            return;
        }
}
