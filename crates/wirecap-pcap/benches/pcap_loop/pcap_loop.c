// A minimal libpcap program: counts packets until it is interrupted, and prints the CPU time and the sleeps.
//
// pcap_loop DEVICE BUFFER_BYTES [poll]
//
// poll: waits on the handle's descriptor and reads without blocking, instead of in pcap_loop.
#include <pcap/pcap.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static pcap_t *p;
static unsigned long packets, touched;
static volatile sig_atomic_t ended;

static void interrupted(int signal) { (void)signal; ended = 1; pcap_breakloop(p); }

static void count(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)user;
    packets++;
    touched += header->len + data[header->caplen - 1];
}

static void poll_and_dispatch(void) {
    char errbuf[PCAP_ERRBUF_SIZE];
    struct pollfd polled = {.fd = pcap_get_selectable_fd(p), .events = POLLIN};
    pcap_setnonblock(p, 1, errbuf);
    while (!ended) {
        poll(&polled, 1, -1);
        pcap_dispatch(p, -1, count, NULL);
    }
    // The interrupted call may have left packets.
    while (pcap_dispatch(p, -1, count, NULL) != 0);
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    if (argc < 3 || !(p = pcap_create(argv[1], errbuf))) return 2;
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
    if (argc > 3) poll_and_dispatch();
    else pcap_loop(p, -1, count, NULL);
    getrusage(RUSAGE_SELF, &after);
    struct pcap_stat stats;
    pcap_stats(p, &stats);
    double cpu = after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec +
                 (after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    printf("%lu %u %u %.6f %lu %ld\n", packets, stats.ps_recv, stats.ps_drop, cpu, touched, after.ru_nvcsw - before.ru_nvcsw);
    pcap_close(p);
    return 0;
}
