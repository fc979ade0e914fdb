// What a handle costs that is opened only to look, as Wireshark's start page does for every interface.
//
// cost DEVICE SNAPLEN TIMES: opens it so many times, and says how long that took in microseconds (the middle one), and of one
// handle how many descriptors it has, how many KiB of rings, and how often the interface was asked to be promiscuous.
#include <dirent.h>
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long micros(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static long ring_kib(void) {
    char line[4096];
    unsigned long from, to, sum = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "socket:") && sscanf(line, "%lx-%lx", &from, &to) == 2) sum += to - from;
    fclose(maps);
    return sum / 1024;
}

static int promiscuity(const char *device) {
    char command[128], line[4096];
    snprintf(command, sizeof command, "ip -d link show dev %s", device);
    FILE *said = popen(command, "r");
    int count = -1;
    while (fgets(line, sizeof line, said)) {
        char *word = strstr(line, "promiscuity ");
        if (word) count = atoi(word + 12);
    }
    pclose(said);
    return count;
}

static int ascending(const void *a, const void *b) { return (*(long *)a > *(long *)b) - (*(long *)a < *(long *)b); }

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    long took[64];
    if (argc < 4) return 2;
    int times = atoi(argv[3]), before = 0;
    for (int n = 0; n < times; n++) {
        long start = micros();
        pcap_t *p = pcap_open_live(argv[1], atoi(argv[2]), 1, 100, errbuf);
        if (!p) { printf("%s\n", errbuf); return 1; }
        took[n] = micros() - start;
        if (n == times - 1)
            printf("descriptors %d\nring_kib %ld\npromiscuity %d\n", descriptors() - before, ring_kib(), promiscuity(argv[1]));
        pcap_close(p);
        before = descriptors();
    }
    qsort(took, times, sizeof *took, ascending);
    printf("micros %ld\n", took[times / 2]);
    return 0;
}
