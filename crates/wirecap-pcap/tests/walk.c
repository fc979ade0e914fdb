// Calls libpcap's functions and prints the results. With both libraries, on beds with the same setup, the
// output must be the same.
//
// walk TAP PEER FOLDER: the two ends of a cable, both in this namespace and without traffic; a folder to
// write to.
#define _GNU_SOURCE
#include <errno.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <pcap/pcap.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *tap, *peer, *folder;
static int wire; // a raw socket on the peer that sends frames
static char errbuf[PCAP_ERRBUF_SIZE];

static void section(const char *name) { printf("== %s\n", name); fflush(stdout); alarm(90); }

static void say(const char *what, int status, pcap_t *p) {
    printf("%s: %d%s%s\n", what, status, status < 0 && p ? " " : "", status < 0 && p ? pcap_geterr(p) : "");
}

static int raw_on(const char *name) {
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(name)};
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address)) { perror("raw"); exit(1); }
    return fd;
}

// Builds a frame of `bytes`: IPv4 with protocol `kind`, numbered, with `tags` VLAN tags.
static int frame(unsigned char *to, int bytes, int kind, int number, int tags) {
    memset(to, number, bytes);
    memcpy(to, "\x02\0\0\0\0\x01\x02\0\0\0\0\x02", 12);
    int at = 12;
    for (int tag = 0; tag < tags; tag++, at += 4) memcpy(to + at, tag ? "\x81\0\0\x09" : "\x81\0\x20\x07", 4);
    memcpy(to + at, "\x08\0\x45\0", 4); at += 4;
    to[at] = (bytes - at + 2) >> 8; to[at + 1] = bytes - at + 2; at += 2;
    memcpy(to + at, "\0\0\0\0\x40", 5); at += 5;
    to[at++] = kind; at += 2;
    memcpy(to + at, "\xc6\x12\0\1\xc6\x13\0\1\x04\0\0\x09", 12);
    return bytes;
}

static void emit(int bytes, int kind, int number, int tags) {
    unsigned char bytes_of[70000];
    frame(bytes_of, bytes, kind, number, tags);
    if (send(wire, bytes_of, bytes, 0) != bytes) perror("send");
}

static void settle(void) { usleep(60000); } // longer than the kernel keeps any block here

static unsigned sum(const unsigned char *data, unsigned bytes) {
    unsigned sum = 1;
    for (unsigned n = 0; n < bytes; n++) sum = sum * 31 + data[n];
    return sum;
}

static void show(const struct pcap_pkthdr *header, const unsigned char *data) {
    printf("  %u/%u %08x\n", header->caplen, header->len, sum(data, header->caplen));
}

struct visit { pcap_t *p; int count, break_at, close_at; void (*act)(struct visit *); };

static void visit(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    struct visit *visit = (struct visit *)user;
    show(header, data);
    visit->count++;
    if (visit->count == visit->break_at) pcap_breakloop(visit->p);
    if (visit->act) visit->act(visit);
}

static void count_only(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)header; (void)data;
    ++*(int *)user;
}

static pcap_t *open_tap(int snaplen, int timeout, int immediate) {
    pcap_t *p = pcap_create(tap, errbuf);
    pcap_set_snaplen(p, snaplen);
    pcap_set_promisc(p, 1);
    pcap_set_timeout(p, timeout);
    pcap_set_immediate_mode(p, immediate);
    int status = pcap_activate(p);
    if (status) say("activate", status, p);
    return p;
}

static void set_filter(pcap_t *p, const char *text) {
    struct bpf_program program;
    int status = pcap_compile(p, &program, text, 1, PCAP_NETMASK_UNKNOWN);
    if (status) { say("compile", status, p); return; }
    status = pcap_setfilter(p, &program);
    if (status) say("setfilter", status, p);
    pcap_freecode(&program);
}

static int drain(pcap_t *p) {
    struct visit v = {.p = p};
    settle();
    pcap_setnonblock(p, 1, errbuf);
    int status = pcap_dispatch(p, -1, visit, (unsigned char *)&v);
    pcap_setnonblock(p, 0, errbuf);
    return status;
}

static void inactive(void) {
    section("inactive handles");
    pcap_t *p = pcap_create(tap, errbuf);
    struct pcap_stat stats;
    struct pcap_pkthdr *header;
    const unsigned char *data;
    int n = 0;
    say("stats", pcap_stats(p, &stats), p);
    say("next_ex", pcap_next_ex(p, &header, &data), p);
    say("dispatch", pcap_dispatch(p, 1, count_only, (unsigned char *)&n), p);
    say("loop", pcap_loop(p, 1, count_only, (unsigned char *)&n), p);
    say("datalink", pcap_datalink(p), p);
    say("snapshot", pcap_snapshot(p), p);
    say("setdirection", pcap_setdirection(p, PCAP_D_IN), p);
    say("inject", pcap_inject(p, "x", 1), p);
    say("sendpacket", pcap_sendpacket(p, (void *)"x", 1), p);
    say("getnonblock", pcap_getnonblock(p, errbuf), p);
    say("fileno", pcap_fileno(p), NULL);
    say("selectable", pcap_get_selectable_fd(p), NULL);
    say("can_set_rfmon", pcap_can_set_rfmon(p), p);
    say("snaplen", pcap_set_snaplen(p, 100), p);
    say("precision", pcap_set_tstamp_precision(p, 7), p);
    say("precision", pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO), p);
    say("tstamp type", pcap_set_tstamp_type(p, 17), p);
    say("tstamp type", pcap_set_tstamp_type(p, PCAP_TSTAMP_ADAPTER), p);
    int *types, count = pcap_list_tstamp_types(p, &types);
    say("tstamp types", count, p);
    for (int t = 0; t < count; t++) printf("  %s\n", pcap_tstamp_type_val_to_name(types[t]));
    if (count > 0) pcap_free_tstamp_types(types);
    say("activate", pcap_activate(p), p);
    say("activate again", pcap_activate(p), p);
    say("snaplen", pcap_set_snaplen(p, 100), p);
    say("promisc", pcap_set_promisc(p, 1), p);
    say("timeout", pcap_set_timeout(p, 1), p);
    say("buffer", pcap_set_buffer_size(p, 1), p);
    say("immediate", pcap_set_immediate_mode(p, 1), p);
    say("precision", pcap_get_tstamp_precision(p), p);
    pcap_close(p);
}

static void refused(void) {
    section("what cannot be opened");
    const char *names[] = {"nosuch0", "a-name-that-is-too-long-for-any-interface", "", "down0"};
    for (unsigned n = 0; n < sizeof names / sizeof *names; n++) {
        strcpy(errbuf, "untouched");
        pcap_t *p = pcap_open_live(names[n], 100, 1, 10, errbuf);
        printf("open_live %s: %d %s\n", names[n], p != NULL, errbuf);
        if (p) pcap_close(p);
        p = pcap_create(names[n], errbuf);
        if (p) { say("create, activate", pcap_activate(p), p); pcap_close(p); }
    }
    strcpy(errbuf, "untouched");
    pcap_t *p = pcap_open_live(tap, 100, 4, 10, errbuf);
    printf("open_live: %d %s\n", p != NULL, errbuf);
    pcap_close(p);
    p = pcap_open_offline("/nosuch/file", errbuf);
    printf("open_offline: %d %s\n", p != NULL, errbuf);
    p = pcap_open_live("any", 100, 1, 10, errbuf);
    printf("any: %d\n", p ? pcap_datalink(p) : -1);
    say("any inject", pcap_inject(p, "xxxxxxxxxxxxxxxxxxxx", 20), p);
    pcap_close(p);
    p = pcap_open_live(NULL, 100, 1, 10, errbuf);
    printf("null: %d\n", p ? pcap_datalink(p) : -1);
    pcap_close(p);
    p = pcap_create(tap, errbuf);
    pcap_set_rfmon(p, 1);
    say("monitor mode", pcap_activate(p), p);
    pcap_close(p);
}

static void properties(void) {
    section("properties");
    int lengths[] = {0, -1, 1, 68, 262144, 300000};
    for (int n = 0; n < 6; n++) {
        pcap_t *p = open_tap(lengths[n], 10, 0);
        printf("snaplen %d: %d\n", lengths[n], pcap_snapshot(p));
        pcap_close(p);
    }
    pcap_t *p = open_tap(100, 10, 0);
    say("datalink", pcap_datalink(p), p);
    say("datalink_ext", pcap_datalink_ext(p), p);
    int *links, count = pcap_list_datalinks(p, &links);
    for (int n = 0; n < count; n++) printf("  %s\n", pcap_datalink_val_to_name(links[n]));
    pcap_free_datalinks(links);
    say("set_datalink", pcap_set_datalink(p, DLT_DOCSIS), p);
    say("datalink", pcap_datalink(p), p);
    say("set_datalink", pcap_set_datalink(p, DLT_RAW), p);
    say("is_swapped", pcap_is_swapped(p), p);
    say("major", pcap_major_version(p), p);
    say("minor", pcap_minor_version(p), p);
    printf("file %d timeout %d same %d valid %d\n", pcap_file(p) != NULL, pcap_get_required_select_timeout(p) != NULL,
           pcap_fileno(p) == pcap_get_selectable_fd(p), pcap_fileno(p) > 2);
    printf("%s\n", pcap_lib_version());
    printf("geterr [%s]\n", pcap_geterr(p));
    pcap_close(p);
}

static void packets(int snaplen, int immediate) {
    section("packets");
    printf("snaplen %d immediate %d\n", snaplen, immediate);
    pcap_t *p = open_tap(snaplen, 10, immediate);
    int sizes[] = {60, 61, 100, 590, 1514};
    for (int n = 0; n < 5; n++) emit(sizes[n], 17, n, 0);
    for (int n = 0; n < 5; n++) emit(sizes[n] < 68 ? 68 : sizes[n], 17, n, 1);
    emit(100, 17, 9, 2);
    settle();
    struct visit v = {.p = p};
    say("dispatch 3", pcap_dispatch(p, 3, visit, (unsigned char *)&v), p);
    struct pcap_pkthdr *header, copy;
    const unsigned char *data;
    for (int n = 0; n < 3; n++) { say("next_ex", pcap_next_ex(p, &header, &data), p); show(header, data); }
    data = pcap_next(p, &copy);
    printf("next %d\n", data != NULL);
    show(&copy, data);
    pcap_setnonblock(p, 1, errbuf);
    say("dispatch -1", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    say("dispatch -1", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    printf("next %d\n", pcap_next(p, &copy) != NULL);
    say("next_ex", pcap_next_ex(p, &header, &data), p);
    struct pcap_stat stats;
    say("stats", pcap_stats(p, &stats), p);
    printf("  %u %u %u\n", stats.ps_recv, stats.ps_drop, stats.ps_ifdrop);
    pcap_close(p);
}

static void filters(void) {
    section("filters");
    const char *texts[] = {"", "udp", "not udp", "vlan", "vlan 7", "vlan and udp", "vlan 7 and vlan 9",
                           "less 64", "greater 600", "ether[20] = 3", "ip[2:2] > 100", "ether proto 0x8100", "tcp"};
    for (unsigned n = 0; n < sizeof texts / sizeof *texts; n++) {
        pcap_t *p = open_tap(1000, 10, 0);
        printf("[%s]\n", texts[n]);
        set_filter(p, texts[n]);
        emit(60, 17, 1, 0); emit(100, 6, 2, 0); emit(100, 17, 3, 1); emit(700, 6, 4, 1); emit(700, 17, 5, 2);
        say("dispatch", drain(p), p);
        struct pcap_stat stats;
        pcap_stats(p, &stats);
        printf("  drop %u\n", stats.ps_drop);
        pcap_close(p);
    }
    pcap_t *p = open_tap(1000, 10, 0);
    set_filter(p, "no such words");
    set_filter(p, "udp");
    emit(100, 6, 1, 0); emit(100, 17, 2, 0); emit(100, 6, 3, 0);
    settle();
    set_filter(p, "tcp");
    emit(100, 6, 4, 0); emit(100, 17, 5, 0);
    say("changed", drain(p), p);
    set_filter(p, "ip");
    emit(100, 6, 6, 0); emit(100, 17, 7, 0);
    settle();
    set_filter(p, "udp");
    say("queued before", drain(p), p);
    say("null", pcap_setfilter(p, NULL), p);
    struct bpf_insn twenty[] = {BPF_STMT(BPF_RET | BPF_K, 20)}, bad[] = {BPF_STMT(BPF_LD | BPF_IMM, 1)};
    struct bpf_program cut = {1, twenty}, invalid = {1, bad}, empty = {0, NULL};
    say("invalid", pcap_setfilter(p, &invalid), p);
    say("empty", pcap_setfilter(p, &empty), p);
    say("cut", pcap_setfilter(p, &cut), p);
    emit(100, 17, 8, 0); emit(100, 17, 8, 1);
    say("cut", drain(p), p);
    pcap_close(p);
    for (int snaplen = 60; snaplen <= 64; snaplen += 4) {
        p = open_tap(snaplen, 10, 0);
        set_filter(p, "ip");
        emit(100, 17, 8, 0); emit(100, 17, 8, 1);
        say("cut", drain(p), p);
        pcap_close(p);
    }
    struct bpf_program program;
    p = open_tap(1000, 10, 0);
    say("compile vlan", pcap_compile(p, &program, "vlan and ip", 1, 0), p);
    for (unsigned n = 0; n < program.bf_len; n++) printf("  %s\n", bpf_image(program.bf_insns + n, n));
    pcap_freecode(&program);
    pcap_close(p);
}

static void directions(void) {
    section("directions");
    int asked[] = {PCAP_D_IN, PCAP_D_OUT, PCAP_D_INOUT, 7, -1};
    unsigned char bytes[100];
    for (int n = 0; n < 5; n++) {
        pcap_t *p = open_tap(1000, 10, 0), *other = open_tap(1000, 10, 0);
        say("setdirection", pcap_setdirection(p, asked[n]), p);
        emit(100, 17, 1, 0);
        say("inject", pcap_inject(other, bytes, frame(bytes, 100, 17, 2, 0)), other);
        say("sendpacket", pcap_sendpacket(p, bytes, frame(bytes, 90, 17, 3, 0)), p);
        say("dispatch", drain(p), p);
        say("other", drain(other), other);
        pcap_close(p);
        pcap_close(other);
    }
}

static void sending(void) {
    section("sending");
    static unsigned char bytes[70000];
    pcap_t *p = open_tap(1000, 10, 0);
    int sizes[] = {60, 0, 1514, 1515, 1600, 65000, 13, 1};
    for (int n = 0; n < 8; n++) {
        frame(bytes, 70000, 17, 1, 0);
        printf("%d\n", sizes[n]);
        say("inject", pcap_inject(p, bytes, sizes[n]), p);
        say("sendpacket", pcap_sendpacket(p, bytes, sizes[n]), p);
    }
    say("sendpacket -1", pcap_sendpacket(p, bytes, -1), p);
    say("inject 2^31", pcap_inject(p, bytes, 1ul << 31), p);
    pcap_close(p);
}

static pcap_t *alarmed;
static void on_alarm(int signal) { (void)signal; pcap_breakloop(alarmed); }
static void on_noise(int signal) { (void)signal; }
static void *break_soon(void *p) { usleep(200000); pcap_breakloop(p); return NULL; }
static void again(struct visit *v) { if (v->count == 1) set_filter(v->p, "tcp"); }

static void breaking(void) {
    section("breaking");
    struct visit v = {0};
    pcap_t *p = open_tap(1000, 10, 0);
    pcap_breakloop(p);
    say("before", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    for (int n = 0; n < 6; n++) emit(100, 17, n, 0);
    settle();
    v = (struct visit){.p = p, .break_at = 2};
    say("in a callback", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    v = (struct visit){.p = p, .break_at = 2};
    say("at the last one", pcap_dispatch(p, 2, visit, (unsigned char *)&v), p);
    v = (struct visit){.p = p};
    say("the rest", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    pthread_t thread;
    pthread_create(&thread, NULL, break_soon, p);
    say("by a thread", pcap_loop(p, -1, visit, (unsigned char *)&v), p);
    pthread_join(thread, NULL);
    alarmed = p;
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_handler = on_noise;
    sigaction(SIGUSR2, &action, NULL);
    pid_t self = getpid();
    if (!fork()) { usleep(100000); kill(self, SIGUSR2); usleep(100000); kill(self, SIGUSR1); _exit(0); }
    say("by a signal", pcap_loop(p, 0, visit, (unsigned char *)&v), p);
    wait(NULL);
    struct pcap_pkthdr *header;
    const unsigned char *data;
    pthread_create(&thread, NULL, break_soon, p);
    say("next_ex", pcap_next_ex(p, &header, &data), p);
    pthread_join(thread, NULL);
    for (int n = 0; n < 3; n++) emit(100, n ? 6 : 17, n, 0);
    settle();
    v = (struct visit){.p = p, .act = again};
    say("loop of 3", pcap_loop(p, 3, visit, (unsigned char *)&v), p);
    pcap_close(p);
}

static void waiting(void) {
    section("waiting");
    struct visit v = {0};
    struct pcap_pkthdr *header;
    const unsigned char *data;
    pcap_t *p = pcap_create(tap, errbuf);
    pcap_set_timeout(p, 10);
    say("setnonblock", pcap_setnonblock(p, 1, errbuf), p);
    pcap_activate(p);
    say("getnonblock", pcap_getnonblock(p, errbuf), p);
    say("idle dispatch", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    say("idle next_ex", pcap_next_ex(p, &header, &data), p);
    say("setnonblock", pcap_setnonblock(p, 0, errbuf), p);
    say("getnonblock", pcap_getnonblock(p, errbuf), p);
    int edge = epoll_create1(0), fd = pcap_get_selectable_fd(p);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    epoll_ctl(edge, EPOLL_CTL_ADD, fd, &event);
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    for (int round = 0; round < 3; round++) {
        printf("poll %d epoll %d\n", poll(&polled, 1, 0), epoll_wait(edge, &event, 1, 0));
        emit(100, 17, 1, 0); emit(100, 17, 2, 0); emit(100, 17, 3, 0);
        printf("poll %d epoll %d\n", poll(&polled, 1, 5000), epoll_wait(edge, &event, 1, 5000));
        say("dispatch 1", pcap_dispatch(p, 1, visit, (unsigned char *)&v), p);
        printf("poll %d\n", poll(&polled, 1, 0));
        say("next_ex", pcap_next_ex(p, &header, &data), p);
        printf("poll %d\n", poll(&polled, 1, 0));
        say("next_ex", pcap_next_ex(p, &header, &data), p);
        printf("poll %d\n", poll(&polled, 1, 0));
        show(header, data);
    }
    pcap_close(p);
    p = open_tap(1000, 50, 1);
    emit(100, 17, 1, 0);
    say("immediate", pcap_next_ex(p, &header, &data), p);
    pcap_close(p);
    p = pcap_create(tap, errbuf);
    pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO);
    pcap_set_timeout(p, 10);
    pcap_activate(p);
    long largest = 0;
    for (int n = 0; n < 10; n++) emit(100, 17, n, 0);
    for (int n = 0; n < 10; n++) { pcap_next_ex(p, &header, &data); if (header->ts.tv_usec > largest) largest = header->ts.tv_usec; }
    printf("nanoseconds %d now %d\n", largest > 999999, labs(time(NULL) - header->ts.tv_sec) < 5);
    pcap_close(p);
}

static void handing_over(void) {
    section("fork, setuid");
    pcap_t *p = open_tap(1000, 10, 0);
    emit(100, 17, 1, 0);
    settle();
    fflush(stdout);
    int child = fork(), status;
    if (!child) {
        emit(100, 17, 2, 0);
        say("child", drain(p), p);
        _exit(0);
    }
    waitpid(child, &status, 0);
    emit(100, 17, 3, 0);
    say("parent", drain(p), p);
    fflush(stdout);
    child = fork();
    if (!child) {
        if (chroot(folder) || setgid(65534) || setuid(65534)) perror("setuid");
        emit(100, 17, 4, 0); emit(100, 6, 5, 0);
        set_filter(p, "tcp");
        struct pcap_stat stats;
        say("stats", pcap_stats(p, &stats), p);
        say("without rights", drain(p), p);
        pcap_t *second = pcap_open_live(tap, 100, 0, 10, errbuf);
        printf("a second one: %s\n", second ? "opened" : errbuf);
        pcap_close(p);
        _exit(0);
    }
    waitpid(child, &status, 0);
    pcap_close(p);
}

static void files(void) {
    section("files");
    char path[200];
    snprintf(path, sizeof path, "%s/walk.pcap", folder);
    pcap_t *p = open_tap(1000, 10, 0);
    for (int n = 0; n < 4; n++) emit(100 + n, 17, n, n & 1);
    pcap_dumper_t *dumper = pcap_dump_open(p, path);
    say("loop", pcap_loop(p, 4, pcap_dump, (unsigned char *)dumper), p);
    printf("tell %ld flush %d\n", pcap_dump_ftell(dumper), pcap_dump_flush(dumper));
    pcap_dump_close(dumper);
    pcap_close(p);
    p = pcap_open_offline(path, errbuf);
    set_filter(p, "udp");
    struct visit v = {.p = p};
    say("read", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    say("end", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    struct pcap_pkthdr *header;
    const unsigned char *data;
    say("end", pcap_next_ex(p, &header, &data), p);
    say("snapshot", pcap_snapshot(p), p);
    say("stats", pcap_stats(p, &(struct pcap_stat){0}), p);
    say("fileno", pcap_get_selectable_fd(p) >= 0, p);
    say("file", pcap_file(p) != NULL, p);
    pcap_close(p);
    FILE *file = fopen(path, "r");
    p = pcap_fopen_offline(file, errbuf);
    say("fopen", pcap_loop(p, 0, visit, (unsigned char *)&v), p);
    pcap_close(p);
    p = pcap_open_dead(DLT_EN10MB, 77);
    printf("dead %d %d\n", pcap_datalink(p), pcap_snapshot(p));
    set_filter(p, "ip");
    say("next_ex", pcap_next_ex(p, &header, &data), p);
    pcap_close(p);
}

static void interface_goes(void) {
    section("the interface goes down and away");
    char command[200];
    struct visit v = {0};
    pcap_t *p = open_tap(1000, 10, 0);
    emit(100, 17, 1, 0);
    say("up", drain(p), p);
    snprintf(command, sizeof command, "ip link set %s down", tap);
    if (system(command)) perror(command);
    pcap_setnonblock(p, 1, errbuf);
    int first = pcap_dispatch(p, -1, visit, (unsigned char *)&v);
    say("down", first, p);
    printf("timeout %d\n", pcap_get_required_select_timeout(p) != NULL);
    snprintf(command, sizeof command, "ip link set %s up", tap);
    if (system(command)) perror(command);
    usleep(300000);
    emit(100, 17, 2, 0);
    settle();
    int status = pcap_dispatch(p, -1, visit, (unsigned char *)&v);
    say("up again", status, p);
    pcap_setnonblock(p, 0, errbuf);
    snprintf(command, sizeof command, "sleep 0.2; ip link delete %s", tap);
    if (!fork()) { if (system(command)) perror(command); _exit(0); }
    say("gone", pcap_loop(p, -1, visit, (unsigned char *)&v), p);
    wait(NULL);
    say("gone", pcap_dispatch(p, -1, visit, (unsigned char *)&v), p);
    pcap_close(p);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    tap = argv[1]; peer = argv[2]; folder = argv[3];
    wire = raw_on(peer);
    inactive();
    refused();
    properties();
    packets(262144, 0);
    packets(262144, 1);
    packets(60, 0);
    packets(64, 0);
    packets(10, 0);
    filters();
    directions();
    sending();
    breaking();
    waiting();
    handing_over();
    files();
    interface_goes();
    return 0;
}
