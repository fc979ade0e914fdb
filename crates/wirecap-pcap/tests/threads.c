// A capture thread for each device, as in a program for plain libpcap. Each packet takes MICROSECONDS to
// process. Ends when PACKETS packets were seen, and prints how many each thread has seen.
//
// threads MICROSECONDS PACKETS FILTER DEVICE ...
#include <pcap/pcap.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long total;
static int pause_us;

struct reader { pcap_t *p; pthread_t thread; long count; int status; };

static void handle(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)header; (void)data;
    struct reader *reader = (struct reader *)user;
    reader->count++;
    total++;
    if (pause_us) usleep(pause_us);
}

static void *run(void *argument) {
    struct reader *reader = argument;
    reader->status = pcap_loop(reader->p, -1, handle, (unsigned char *)reader);
    return NULL;
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    struct reader readers[16] = {{0}};
    pause_us = atoi(argv[1]);
    long wanted = atol(argv[2]);
    int count = argc - 4;
    for (int n = 0; n < count; n++) {
        pcap_t *p = readers[n].p = pcap_open_live(argv[n + 4], 100, 1, 20, errbuf);
        if (!p) { printf("%s\n", errbuf); return 1; }
        struct bpf_program program;
        if (pcap_compile(p, &program, argv[3], 1, 0) || pcap_setfilter(p, &program)) { printf("%s\n", pcap_geterr(p)); return 1; }
        pcap_freecode(&program);
    }
    printf("ready\n");
    fflush(stdout);
    for (int n = 0; n < count; n++) pthread_create(&readers[n].thread, NULL, run, readers + n);
    for (int tenths = 0; total < wanted && tenths < 600; tenths++) usleep(100000);
    usleep(300000); // for unexpected packets
    long received = 0, dropped = 0;
    for (int n = 0; n < count; n++) {
        pcap_breakloop(readers[n].p);
        pthread_join(readers[n].thread, NULL);
        struct pcap_stat stats;
        pcap_stats(readers[n].p, &stats);
        received += stats.ps_recv;
        dropped += stats.ps_drop;
        printf("thread %ld %d\n", readers[n].count, readers[n].status);
    }
    printf("total %ld received %ld dropped %ld\n", (long)total, received, dropped);
    for (int n = 0; n < count; n++) pcap_close(readers[n].p);
    return 0;
}
