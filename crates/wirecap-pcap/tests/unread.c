// What a handle costs that is open while packets come and that is not read.
//
// unread CAPTURED SENT: says how many threads the process has, whether any of them woke meanwhile, its own sleep not counted,
// and whether all packets were received or dropped.
#include <dirent.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FRAMES = 2000, PAUSE_MICROS = 500 };
// Far fewer than times that packets were ready to be read.
enum { BY_CHANCE = 10 };

// How often all threads of the process have slept or been put off, and how many there are.
static long turns(int *threads) {
    char path[512], line[256];
    long sum = 0, count;
    *threads = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        ++*threads;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        while (fgets(line, sizeof line, status))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1) sum += count;
        fclose(status);
    }
    closedir(folder);
    return sum;
}

static void send_all(const char *device) {
    int sender = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(device)};
    unsigned char frame[60];
    memset(frame, 0xff, sizeof frame);
    for (int n = 0; n < FRAMES; n++) {
        sendto(sender, frame, sizeof frame, 0, (struct sockaddr *)&to, sizeof to);
        usleep(PAUSE_MICROS);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    struct pcap_stat stats;
    int threads;
    if (argc < 3) return 2;
    pcap_t *p = pcap_open_live(argv[1], 65535, 1, 20, errbuf);
    if (!p) { printf("%s\n", errbuf); return 1; }
    long before = turns(&threads);
    pid_t child = fork();
    if (child == 0) send_all(argv[2]);
    // The parent sleeps once, until the child ends.
    waitpid(child, NULL, 0);
    long woken = turns(&threads) - before - 1;
    pcap_stats(p, &stats);
    fprintf(stderr, "woken %ld times\n", woken);
    printf("threads %d\nwoken %d\nreceived %d\n", threads, woken > BY_CHANCE, stats.ps_recv >= FRAMES);
    pcap_close(p);
    return 0;
}
