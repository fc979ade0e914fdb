// The paper's multi_pkt_handler for plain libpcap: a thread with a handle for each device, which applies a
// filter X times to every packet. Ends when no packets have arrived for two seconds, and prints how many
// packets each thread has seen, and how many were received and dropped in total.
//
// handlers X FILTER DEVICE[=WHICH] ...      WHICH: a filter for this thread's packets
//
// HANDLER_NS=N: each packet takes N nanoseconds more. The thread sleeps for this time, so two CPUs can
// simulate many.
#include <pcap/pcap.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_long total;
static int repetitions;
static long packet_ns;
static struct bpf_program program;

// The time by which a wait is too long is subtracted from the next one (ahead_ns).
struct handler { pcap_t *p; pthread_t thread; long count; unsigned long matches; long owed_ns, ahead_ns; };

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void work(struct handler *handler) {
    long begin = now_ns(), left = handler->owed_ns - handler->ahead_ns;
    if (left > 0) nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
    handler->ahead_ns += now_ns() - begin - handler->owed_ns;
    handler->owed_ns = 0;
}

static void handle(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    struct handler *handler = (struct handler *)user;
    for (int n = 0; n < repetitions; n++) handler->matches += pcap_offline_filter(&program, header, data) != 0;
    handler->count++;
    total++;
    if ((handler->owed_ns += packet_ns) > 1000000) work(handler);
}

static void *run(void *argument) {
    struct handler *handler = argument;
    pcap_loop(handler->p, -1, handle, (unsigned char *)handler);
    return NULL;
}

static void filter(pcap_t *p, struct bpf_program *compiled, const char *expression) {
    if (pcap_compile(p, compiled, expression, 1, 0)) { printf("%s\n", pcap_geterr(p)); exit(1); }
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    struct handler handlers[16] = {{0}};
    repetitions = atoi(argv[1]);
    if (getenv("HANDLER_NS")) packet_ns = atol(getenv("HANDLER_NS"));
    int count = argc - 3;
    for (int n = 0; n < count; n++) {
        char *device = strsep(&argv[n + 3], "="), *which = argv[n + 3];
        pcap_t *p = handlers[n].p = pcap_open_live(device, 65535, 1, 20, errbuf);
        if (!p) { printf("%s\n", errbuf); return 1; }
        if (!which) continue;
        struct bpf_program share;
        filter(p, &share, which);
        if (pcap_setfilter(p, &share)) { printf("%s\n", pcap_geterr(p)); return 1; }
        pcap_freecode(&share);
    }
    filter(handlers[0].p, &program, argv[2]);
    printf("ready\n");
    fflush(stdout);
    for (int n = 0; n < count; n++) pthread_create(&handlers[n].thread, NULL, run, handlers + n);
    long before = 0;
    for (int quiet = 0, tenths = 0; quiet < 20 && tenths < 1200; tenths++, before = total) {
        usleep(100000);
        quiet = total > 0 && total == before ? quiet + 1 : 0;
    }
    long received = 0, dropped = 0;
    unsigned long matches = 0;
    for (int n = 0; n < count; n++) {
        pcap_breakloop(handlers[n].p);
        pthread_join(handlers[n].thread, NULL);
    }
    for (int n = 0; n < count; n++) {
        matches += handlers[n].matches;
        printf("thread %ld 0\n", handlers[n].count);
    }
    // The handle with most losses is closed first: the others must not count what it has counted.
    for (int left = count; left > 0; left--) {
        struct handler *worst = NULL;
        struct pcap_stat most = {0}, stats;
        for (int n = 0; n < count; n++) {
            if (!handlers[n].p) continue;
            pcap_stats(handlers[n].p, &stats);
            if (!worst || stats.ps_drop > most.ps_drop) worst = &handlers[n], most = stats;
        }
        received += most.ps_recv;
        dropped += most.ps_drop;
        pcap_close(worst->p);
        worst->p = NULL;
    }
    printf("total %ld received %ld dropped %ld matches %lu\n", (long)total, received, dropped, matches / repetitions);
    return 0;
}
