/* NCCL's log read into a summary: hosts with NVLink and InfiniBand, sockets and shared memory, two ranks on one GPU (tests/data/nccl_logs, in the
 * wording of several versions of NCCL); what no line states is not known; a garbled or cut log does no harm. */
#include "cmocka_all.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/nccl_log.h"

#include <stdio.h>
#include <string.h>

static void add_folder(ls_nccl_log *l, const char *name)
{
    char dir[512], path[800], **names = NULL;
    size_t n = 0;
    snprintf(dir, sizeof dir, "%s/tests/data/nccl_logs/%s", LS_SOURCE_DIR, name);
    assert_int_equal(ls_fs_list(dir, &names, &n), LS_OK);
    assert_true(n > 1);
    for (size_t i = 0; i < n; i++) {
        char *text = NULL;
        size_t len = 0;
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(ls_fs_read(path, &text, &len), LS_OK);
        ls_nccl_log_add(l, text, len);
        ls_free(text);
    }
    ls_fs_list_free(names, n);
}

static int64_t count(const ls_nccl_log *l, const char *name, bool in)
{
    for (int i = 0; i < l->n_transport; i++)
        if (!strcmp(l->transport[i].name, name)) return in ? l->transport[i].in : l->transport[i].out;
    return 0;
}

static void nvlink_and_infiniband_are_recognized(void **state)
{
    (void)state;
    ls_nccl_log l;
    ls_nccl_log_init(&l);
    add_folder(&l, "ib");
    assert_string_equal(l.version, "2.30.7");
    assert_string_equal(l.cuda, "13.0");
    assert_int_equal(l.n_file, 4);
    assert_int_equal(l.n_rank, 4);
    assert_int_equal(l.n_rank_logged, 4);
    assert_int_equal(l.n_node, 2);
    assert_int_equal(l.n_comm, 2); /* one of all four ranks, one of a pair */
    assert_int_equal(l.rings, 2);  /* not the 8 of the pair */
    assert_string_equal(l.ring, "0 1 2 3");
    assert_int_equal(l.trees, 2);
    assert_int_equal(l.channels, 2);
    assert_int_equal(l.nvls_channels, 0);
    assert_int_equal(l.p2p_channels, 4);
    assert_string_equal(l.path, "NVL");
    assert_true(l.bw_intra == 48);
    assert_string_equal(l.network, "IB");
    assert_int_equal(l.n_device, 2);
    assert_string_equal(l.device[1], "mlx5_1:1/IB");
    assert_int_equal(l.n_transport, 2);
    assert_int_equal(count(&l, "P2P/CUMEM", false), 5); /* two rings of two hops inside a host, and the pair's */
    assert_int_equal(count(&l, "NET/IB/GDRDMA", false), 4);
    assert_int_equal(count(&l, "NET/IB/GDRDMA", true), 4);
    assert_int_equal(l.rings_connected, 4);
    assert_int_equal(ls_nccl_log_gpudirect(&l), 1);
    assert_int_equal(ls_nccl_log_nvlink(&l), 1);
    assert_int_equal(ls_nccl_log_infiniband(&l), 1);
    assert_int_equal(ls_nccl_log_nvls(&l), 0);
    assert_int_equal(l.n_warn, 0);
}

static void add_text(ls_nccl_log *l, const char *text)
{
    ls_nccl_log_add(l, text, strlen(text));
}

/* One line with the prefix of a log, into a summary of its own. */
static ls_nccl_log of_line(const char *message)
{
    char text[2000];
    ls_nccl_log l;
    ls_nccl_log_init(&l);
    snprintf(text, sizeof text, "yew:7:8 [0] NCCL INFO %s\n", message);
    add_text(&l, text);
    return l;
}

static void sockets_and_shared_memory_are_recognized(void **state)
{
    (void)state;
    ls_nccl_log l;
    ls_nccl_log_init(&l);
    add_folder(&l, "socket");
    assert_string_equal(l.version, "2.21.5");
    assert_string_equal(l.cuda, "12.4");
    assert_int_equal(l.n_rank, 3);
    assert_int_equal(l.n_node, -1); /* NCCL 2.21 does not print it */
    assert_string_equal(l.ring, "0 1 2");
    assert_string_equal(l.network, "Socket");
    assert_int_equal(l.n_device, 2);
    assert_string_equal(l.device[0], "eth0:192.0.2.10");
    assert_int_equal(count(&l, "SHM", false), 2);
    assert_int_equal(count(&l, "NET/Socket", false), 4);
    assert_int_equal(count(&l, "NET/Socket", true), 4);
    assert_int_equal(l.trees_connected, 3);
    assert_int_equal(ls_nccl_log_gpudirect(&l), 0);
    assert_int_equal(ls_nccl_log_nvlink(&l), 0);
    assert_int_equal(ls_nccl_log_infiniband(&l), 0);
    assert_string_equal(l.path, "");
}

static void different_networks_are_all_listed(void **state)
{
    (void)state;
    ls_nccl_log l = of_line("Using network IB");
    ls_str s = {0};
    ls_jsonw w;
    add_text(&l, "elm:9:9 [1] NCCL INFO Using network Socket\nelm:9:9 [1] NCCL INFO Using network IB\n");
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_open(&w, '{');
    ls_nccl_log_write(&l, &w);
    ls_jsonw_close(&w);
    assert_non_null(strstr(s.data, "IB (2), Socket (1)"));
    ls_str_fini(&s);
    for (int i = 0; i < 20; i++) { /* more than fit */
        char line[80];
        snprintf(line, sizeof line, "elm:9:9 [1] NCCL INFO Using network plugin-%d-with-a-long-name\n", i);
        add_text(&l, line);
    }
    assert_int_equal(l.n_network, LS_NCCL_LOG_NETWORKS);
}

static void two_ranks_on_one_gpu_are_recognized(void **state)
{
    (void)state;
    ls_nccl_log l;
    ls_nccl_log_init(&l);
    add_folder(&l, "onegpu");
    assert_int_equal(l.n_rank, 2);
    assert_string_equal(l.path, "LOC");
    assert_int_equal(count(&l, "P2P/IPC", false), 2);
    assert_int_equal(l.channels, 4); /* without collnet channels in the line */
    assert_int_equal(l.rings, -1);
    assert_int_equal(ls_nccl_log_nvlink(&l), 0);
    assert_int_equal(l.n_warn, 1);
    assert_string_equal(l.warn, "[Service thread] Connection closed by localRank 0");
}

static void each_transport_gets_its_short_name(void **state)
{
    (void)state;
    static const char *const line[][2] = {
        {"Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct pointer"},
        {"Channel 00/1 : 0[0] -> 1[1] via P2P/IPC/read/CE", "P2P/IPC"},
        {"Channel 07/0 : 0[0] -> 9[1] via P2P/MNNVL", "P2P/MNNVL"},
        {"Channel 07/0 : 0[0] -> 3[3] via P2P/indirect/1[1]/read", "P2P/indirect"},
        {"Channel 01 : 0[0] -> 1[1] via SHM/CE/direct", "SHM"},
        {"Channel 01 : 0[0] -> 1[1] via SHM/direct", "SHM"},
        {"Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0/Shared", "NET/Socket"},
        {"Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3(2)/GDRDMA(PCI)/Shared", "NET/IB/GDRDMA"},
        {"Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA", "NET/AWS Libfabric/GDRDMA"},
        {"CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP/GDRDMA"},
    };
    for (size_t i = 0; i < N_OF(line); i++) {
        const ls_nccl_log l = of_line(line[i][0]);
        assert_int_equal(l.n_transport, 1);
        assert_string_equal(l.transport[0].name, line[i][1]);
        assert_int_equal(l.transport[0].out, 1);
        assert_int_equal(l.transport[0].in, 0);
    }
}

static void what_no_line_states_is_unknown(void **state)
{
    (void)state;
    ls_nccl_log l = of_line("NCCL version 2.19.3+cuda12.2");
    assert_string_equal(l.version, "2.19.3");
    assert_int_equal(l.n_rank, -1);
    assert_int_equal(ls_nccl_log_gpudirect(&l), -1);
    assert_int_equal(ls_nccl_log_nvlink(&l), -1);
    assert_int_equal(ls_nccl_log_infiniband(&l), -1);
    assert_int_equal(ls_nccl_log_nvls(&l), -1);
    l = of_line("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"); /* the link is not stated */
    assert_int_equal(ls_nccl_log_nvlink(&l), -1);
    l = of_line("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0"); /* the network card is not stated */
    assert_int_equal(ls_nccl_log_infiniband(&l), -1);
    assert_int_equal(ls_nccl_log_gpudirect(&l), 0);
    add_text(&l, "yew:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [RO]; OOB eth1:192.0.2.1<0>\n");
    assert_int_equal(ls_nccl_log_infiniband(&l), 0);
    add_text(&l, "yew:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_3:1/IB ; OOB eth1:192.0.2.1<0>\n");
    assert_int_equal(ls_nccl_log_infiniband(&l), -1); /* one of each */
    l = of_line(
        "NVLS comm 0x5500 headRank 0 nHeads 8 buffSize 1048576 nvlsPerRankSize 33554432 nvlsTotalSize 268435456");
    assert_int_equal(ls_nccl_log_nvls(&l), 1);
    assert_int_equal(ls_nccl_log_nvlink(&l), 1);
}

static void the_summary_is_valid_json(void **state)
{
    (void)state;
    ls_nccl_log l;
    ls_str s = {0};
    ls_jsonw w;
    json_t *j = NULL;
    ls_nccl_log_init(&l);
    add_folder(&l, "socket");
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_nccl_log_write(&l, &w);
    ls_jsonw_close(&w);
    assert_int_equal(ls_json_parse(s.data, s.len, "summary", &j), LS_OK);
    assert_string_equal(json_string_value(json_object_get(j, "version")), "2.21.5");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "transports"), "NET/Socket")), 4);
    assert_true(json_is_false(json_object_get(j, "gpudirect_rdma")));
    assert_true(json_is_null(json_object_get(j, "n_nodes")));
    assert_true(json_is_null(json_object_get(j, "ring_path")));
    assert_int_equal(json_integer_value(json_object_get(j, "rings")), 2);
    json_decref(j);
    ls_str_fini(&s);
}

static void without_a_log_counts_are_null(void **state)
{
    (void)state;
    static const char *const key[] = {"communicators", "rings_connected", "trees_connected", "warnings"};
    ls_nccl_log l;
    ls_str s = {0};
    ls_jsonw w;
    json_t *j = NULL;
    ls_nccl_log_init(&l);
    ls_jsonw_init(&w, &s, 2);
    ls_jsonw_open(&w, '{');
    ls_nccl_log_write(&l, &w);
    ls_jsonw_close(&w);
    assert_int_equal(ls_json_parse(s.data, s.len, "summary", &j), LS_OK);
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) assert_true(json_is_null(json_object_get(j, key[i])));
    assert_int_equal(json_integer_value(json_object_get(j, "logs")), 0);
    json_decref(j);
    ls_str_fini(&s);
}

/* Every prefix of a log, and the log with changed bytes, are read without an invalid access (asan, ubsan). */
static void a_garbled_log_does_no_harm(void **state)
{
    (void)state;
    char path[512], *text = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/tests/data/nccl_logs/ib/nccl_rank_oak1_4100.log", LS_SOURCE_DIR);
    assert_int_equal(ls_fs_read(path, &text, &n), LS_OK);
    for (size_t cut = 0; cut < n; cut += 7) {
        char *part = ls_alloc(cut + 1); /* the end of the text is the end of the block */
        assert_non_null(part);
        memcpy(part, text, cut);
        ls_nccl_log l;
        ls_nccl_log_init(&l);
        ls_nccl_log_add(&l, part, cut);
        assert_true(l.n_rank == -1 || l.n_rank == 4);
        ls_free(part);
    }
    for (size_t at = 0; at < n; at += 3) {
        const char was = text[at];
        text[at] = (char)(at % 5 ? '0' + at % 80 : '\0');
        ls_nccl_log l;
        ls_nccl_log_init(&l);
        ls_nccl_log_add(&l, text, n);
        text[at] = was;
        assert_true(l.n_file == 1);
    }
    ls_free(text);
    ls_nccl_log l = of_line("comm 0x1 rank 99999 nranks 100000 cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init COMPLETE");
    assert_int_equal(l.n_rank, 100000); /* more ranks than are recorded one by one */
    assert_int_equal(l.n_rank_logged, 0);
    for (int i = 0; i < 40; i++) {
        char line[100];
        snprintf(line, sizeof line, "yew:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/X%d/0\n", i);
        add_text(&l, line);
    }
    assert_int_equal(l.n_transport, LS_NCCL_LOG_TRANSPORTS);
    assert_true(l.transports_lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvlink_and_infiniband_are_recognized),
        cmocka_unit_test(sockets_and_shared_memory_are_recognized),
        cmocka_unit_test(different_networks_are_all_listed),
        cmocka_unit_test(two_ranks_on_one_gpu_are_recognized),
        cmocka_unit_test(each_transport_gets_its_short_name),
        cmocka_unit_test(what_no_line_states_is_unknown),
        cmocka_unit_test(the_summary_is_valid_json),
        cmocka_unit_test(without_a_log_counts_are_null),
        cmocka_unit_test(a_garbled_log_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
