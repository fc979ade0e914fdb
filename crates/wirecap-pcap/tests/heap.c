// Who allocates memory before main: a program may behave differently if its heap differs.
//
// heap DEVICE: prints how many allocator calls before main came from an object named libpcap, and from
// objects other than the loader; and whether an object named libpcap allocates memory in pcap_create.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pcap/pcap.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 4096 };

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static void *callers[MOST];
static int calls;

static void note(void *caller) {
    if (calls < MOST) callers[calls] = caller;
    calls++;
}

// The allocator of the whole process, including its libraries.
void *malloc(size_t bytes) {
    note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    note(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
    note(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
    note(__builtin_return_address(0));
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : 12;
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    note(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

// How many of the calls from `first` to `end` came from objects whose name contains `part`, or does not,
// according to `has`.
static int from(int first, int end, const char *part, int has) {
    int count = 0;
    for (int n = first; n < end && n < MOST; n++) {
        Dl_info object;
        const char *name = dladdr(callers[n], &object) && object.dli_fname ? object.dli_fname : "";
        count += (strstr(name, part) != NULL) == has;
    }
    return count;
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    if (argc < 2) return 2;
    int before = calls;
    int own = from(0, before, "libpcap", 1), others = from(0, before, "ld-linux", 0);
    pcap_t *p = pcap_create(argv[1], errbuf);
    if (!p) return 1;
    int later = from(before, calls, "libpcap", 1);
    pcap_close(p);
    printf("before main: %d from libpcap, %d from others than the loader\nin pcap_create: %s\n", own, others,
           later ? "some" : "none");
    return 0;
}
