// Misuses handles. Prints a line for each check: `ok` if it succeeded, otherwise `WRONG`.
//
// misuse TAP PEER
#include <pcap/pcap.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *tap;
static char errbuf[PCAP_ERRBUF_SIZE];
static pcap_t *wire;

static void check(const char *what, int holds) {
    printf("%s: %s\n", holds ? "ok" : "WRONG", what);
    fflush(stdout);
    alarm(90);
}

static pcap_t *open_tap(void) {
    pcap_t *p = pcap_open_live(tap, 1000, 1, 10, errbuf);
    if (!p) { printf("WRONG: %s\n", errbuf); exit(1); }
    return p;
}

static void emit(int count) {
    unsigned char frame[60] = "\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08";
    while (count-- > 0) pcap_inject(wire, frame, sizeof frame);
    usleep(60000);
}

static void count(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)header; (void)data;
    ++*(int *)user;
}

static jmp_buf out;
static pcap_t *current;
static int closed_in, nested;
static void jump(unsigned char *user, const struct pcap_pkthdr *h, const unsigned char *d) { (void)user; (void)h; (void)d; longjmp(out, 1); }
static void close_it(unsigned char *user, const struct pcap_pkthdr *h, const unsigned char *d) {
    (void)user; (void)h; (void)d;
    pcap_close(current);
    closed_in++;
}
static void nest(unsigned char *user, const struct pcap_pkthdr *h, const unsigned char *d) {
    (void)user; (void)h; (void)d;
    struct pcap_pkthdr *header;
    const unsigned char *data;
    nested += pcap_next_ex(current, &header, &data);
    struct bpf_program program;
    pcap_compile(current, &program, "ip", 1, 0);
    pcap_setfilter(current, &program);
    pcap_freecode(&program);
    struct pcap_stat stats;
    pcap_stats(current, &stats);
    pcap_inject(current, "\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08", 14);
}

static int looped;
static void *loop(void *p) {
    int n = 0;
    looped = pcap_loop(p, -1, count, (unsigned char *)&n);
    return NULL;
}

static void stay(unsigned char *user, const struct pcap_pkthdr *h, const unsigned char *d) { (void)user; (void)h; (void)d; sleep(20); }
static void *loop_and_stay(void *p) {
    pcap_loop(p, -1, stay, NULL);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    tap = argv[1];
    wire = pcap_open_live(argv[2], 100, 0, 10, errbuf);
    struct pcap_pkthdr *header, copy;
    const unsigned char *data;
    struct pcap_stat stats;
    int n = 0;

    pcap_t *handles[3] = {NULL, open_tap(), pcap_open_dead(1, 100)};
    pcap_close(handles[1]);
    pcap_close(handles[2]);
    const char *names[] = {"null", "closed live", "closed dead"};
    for (int i = 0; i < 3; i++) {
        pcap_t *p = handles[i];
        printf("%s\n", names[i]);
        check("dispatch", pcap_dispatch(p, 1, count, (void *)&n) == -1);
        check("loop", pcap_loop(p, 1, count, (void *)&n) == -1);
        check("next", pcap_next(p, &copy) == NULL);
        check("next_ex", pcap_next_ex(p, &header, &data) == -1);
        check("stats", pcap_stats(p, &stats) == -1);
        check("activate", pcap_activate(p) == -1);
        check("set_snaplen", pcap_set_snaplen(p, 10) == -1);
        check("datalink", pcap_datalink(p) == -1);
        check("fileno", pcap_fileno(p) == -1);
        check("selectable", pcap_get_selectable_fd(p) == -1);
        check("inject", pcap_inject(p, "x", 1) == -1);
        check("setnonblock", pcap_setnonblock(p, 1, errbuf) == -1);
        check("setfilter", pcap_setfilter(p, NULL) == -1);
        check("geterr", strstr(pcap_geterr(p), "closed") != NULL);
        check("dump_open", pcap_dump_open(p, "/nowhere/x") == NULL);
        pcap_breakloop(p);
        pcap_close(p);
    }
    check("nothing was counted", n == 0);

    pcap_t *p = open_tap();
    check("no callback", pcap_dispatch(p, 1, NULL, NULL) == -1);
    emit(5);
    if (!setjmp(out)) pcap_loop(p, -1, jump, NULL);
    n = 0;
    check("reading continues after a jump out of a callback", pcap_loop(p, 3, count, (void *)&n) == 0 && n == 3);
    current = p;
    emit(4);
    pcap_setnonblock(p, 1, errbuf);
    check("a callback reads", pcap_dispatch(p, 1, nest, NULL) == 1 && nested == 1);
    emit(2);
    check("a callback closes", pcap_dispatch(p, -1, close_it, NULL) == -2 && closed_in == 1);
    check("the handle is closed afterwards", pcap_dispatch(p, -1, count, (void *)&n) == -1);

    p = open_tap();
    pthread_t thread;
    pthread_create(&thread, NULL, loop, p);
    usleep(100000);
    check("a second reader", pcap_next_ex(p, &header, &data) == -1 && strstr(pcap_geterr(p), "another thread"));
    check("statistics meanwhile", pcap_stats(p, &stats) == 0);
    pcap_breakloop(p);
    pthread_join(thread, NULL);
    check("broken off", looped == -2);
    pthread_create(&thread, NULL, loop, p);
    usleep(100000);
    pcap_close(p);
    pthread_join(thread, NULL);
    check("closed by another thread", looped == -2);
    p = open_tap();
    pthread_create(&thread, NULL, loop, p);
    usleep(100000);
    pthread_cancel(thread);
    void *result;
    pthread_join(thread, &result);
    check("a cancelled reader ends", result == PTHREAD_CANCELED);
    emit(1);
    check("another reader continues", pcap_next_ex(p, &header, &data) == 1);
    pthread_create(&thread, NULL, loop_and_stay, p);
    usleep(100000);
    emit(1);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    check("a reader cancelled in its callback ends", result == PTHREAD_CANCELED);
    pcap_close(p);
    for (int i = 0; i < 10; i++) {
        p = pcap_create(tap, errbuf);
        pcap_set_buffer_size(p, 1 << 19);
        if (pcap_activate(p)) { printf("WRONG: %s\n", pcap_geterr(p)); break; }
        pcap_close(p);
    }
    check("opened and closed often", 1);
    pcap_close(wire);
    return 0;
}
