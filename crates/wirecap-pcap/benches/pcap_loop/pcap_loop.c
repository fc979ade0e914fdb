// A minimal libpcap program: counts packets until it is interrupted, and prints the CPU time and the sleeps.
//
// pcap_loop DEVICE BUFFER_BYTES
#include <pcap/pcap.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static pcap_t *p;
static unsigned long packets, touched;

static void interrupted(int signal) { (void)signal; pcap_breakloop(p); }

static void count(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)user;
    packets++;
    touched += header->len + data[header->caplen - 1];
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    if (argc != 3 || !(p = pcap_create(argv[1], errbuf))) return 2;
    pcap_set_snaplen(p, 65535);
    pcap_set_promisc(p, 1);
    pcap_set_timeout(p, 20);
    pcap_set_buffer_size(p, atoi(argv[2]));
    if (pcap_activate(p) < 0) { fprintf(stderr, "%s\n", pcap_geterr(p)); return 1; }
    struct sigaction action = {.sa_handler = interrupted};
    sigaction(SIGINT, &action, NULL);
    printf("ready\n");
    fflush(stdout);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    pcap_loop(p, -1, count, NULL);
    getrusage(RUSAGE_SELF, &after);
    struct pcap_stat stats;
    pcap_stats(p, &stats);
    double cpu = after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec +
                 (after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    printf("%lu %u %u %.6f %lu %ld\n", packets, stats.ps_recv, stats.ps_drop, cpu, touched, after.ru_nvcsw - before.ru_nvcsw);
    pcap_close(p);
    return 0;
}
