// drops DEVICE COUNTER: opens DEVICE, adds 5 to the counter of packets that the interface missed, and prints the statistics
// before and after.
#include <pcap/pcap.h>
#include <stdio.h>

static char errbuf[PCAP_ERRBUF_SIZE];

static void set(const char *counter, int count) {
    FILE *file = fopen(counter, "w");
    if (!file || fprintf(file, "%d\n", count) < 0 || fclose(file)) perror(counter);
}

static void show(const char *when, pcap_t *p) {
    struct pcap_stat stats;
    int status = pcap_stats(p, &stats);
    printf("%s: %d, %u %u %u\n", when, status, stats.ps_recv, stats.ps_drop, stats.ps_ifdrop);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    for (int promiscuous = 1; promiscuous >= 0; promiscuous--) {
        set(argv[2], 7);
        pcap_t *p = pcap_open_live(argv[1], 100, promiscuous, 10, errbuf);
        if (!p) {
            printf("%s\n", errbuf);
            return 1;
        }
        printf("promiscuous: %d\n", promiscuous);
        show("at the beginning", p);
        set(argv[2], 12);
        show("after 5 more", p);
        pcap_close(p);
    }
    return 0;
}
