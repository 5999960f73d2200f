/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, at the hardware border.
 *
 * It tests how we handle what NVML answers. It does not test a GPU, and nothing that passes with it shows that
 * something works on one.
 *
 * What it answers stands in the text file that NVML_STUB_STATE names, else in /run/nvml-stub, read anew at every call,
 * so that a test can change it under a running process. One line per thing, of key=value fields separated by '|':
 *
 *     driver|init=0|count_error=0
 *     gpu|uuid=GPU-1|name=NVIDIA Test|total=1000|reserved=10|used=20|util=50|mig=1|cores=ff|mode=0
 *     event|gpu=0|xid=79
 *     mig|slot=0|uuid=MIG-1|name=NVIDIA Test MIG 1g|total=100|reserved=0|used=0
 *
 * An event line is something that happens once, to a GPU by its number: an Xid, or with ecc=1 a double bit error. A gpu
 * line may also say cc=8.0 (compute capability), links=1,2 (NVLinks to GPUs by their numbers, "s" for a switch), ecc=2
 * (uncorrectable errors so far), pending=1 and failure=1 (remapped rows), pages=1 (pages that are to be retired), and
 * throttle=40 (the reasons why its clocks are low, hexadecimal), and programs=4242:100,4243:200 (the processes that
 * compute on it, and their bytes; "-" for bytes that the driver does not tell). So may a mig line.
 *
 * A mig line belongs to the gpu line above it. A field <function>_error gives the code that this function returns
 * for this thing: handle_error, uuid_error, name_error, memory_error, memory2_error, util_error, affinity_error,
 * energy_error, programs_error. A gpu without energy= (in mJ) counts none.
 * Handles are numbers: gpu * 100 + 1, plus 1 + slot for a MIG instance.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { TIMEOUT = 10, XID = 8, DOUBLE_BIT = 2 };
enum { LINE = 1024, SLOTS = 7 };
typedef void *handle_t;

static int open_sessions = 0;

/* The line of the driver (gpu < 0), of a GPU, or of a GPU's MIG instance (slot >= 0). */
static int find_line(int gpu, int slot, char *out) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = fopen(path ? path : "/run/nvml-stub", "r");
    char line[LINE], wanted[32];
    int seen = -1, found = 0;
    if (!file) return 0;
    snprintf(wanted, sizeof wanted, "|slot=%d|", slot);
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "gpu|", 4)) seen++;
        if (gpu < 0) found = !strncmp(line, "driver", 6);
        else if (slot < 0) found = !strncmp(line, "gpu|", 4) && seen == gpu;
        else found = !strncmp(line, "mig|", 4) && seen == gpu && strstr(line, wanted);
        if (found) strcpy(out, line);
    }
    fclose(file);
    return found;
}

static int text_field(int gpu, int slot, const char *key, char *out) {
    char line[LINE], wanted[64], *at;
    *out = 0;
    if (!find_line(gpu, slot, line)) return 0;
    snprintf(wanted, sizeof wanted, "|%s=", key);
    if (!(at = strstr(line, wanted))) return 0;
    at += strlen(wanted);
    at[strcspn(at, "|")] = 0;
    strcpy(out, at);
    return 1;
}

static unsigned long long number(int gpu, int slot, const char *key, int base) {
    char text[LINE];
    return text_field(gpu, slot, key, text) ? strtoull(text, NULL, base) : 0;
}

static void split(handle_t handle, int *gpu, int *slot) {
    long value = (long)handle - 1;
    *gpu = (int)(value / 100);
    *slot = (int)(value % 100) - 1;
}

static int answer(handle_t handle, const char *function, int *gpu, int *slot) {
    char key[64], line[LINE];
    if (!open_sessions) return UNINITIALIZED;
    split(handle, gpu, slot);
    if (!find_line(*gpu, *slot, line)) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%s_error", function);
    return (int)number(*gpu, *slot, key, 10);
}

int nvmlInitWithFlags(unsigned flags) {
    int error = (int)number(-1, -1, "init", 10);
    (void)flags;
    if (!error) open_sessions++;
    return error;
}

int nvmlShutdown(void) {
    if (!open_sessions) return UNINITIALIZED;
    open_sessions--;
    return SUCCESS;
}

const char *nvmlErrorString(int error) {
    return error == 999 ? "Unknown Error" : "some error of the stub";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    char line[LINE];
    if (!open_sessions) return UNINITIALIZED;
    for (*count = 0; find_line((int)*count, -1, line); ++*count) {}
    return (int)number(-1, -1, "count_error", 10);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *handle) {
    int gpu, slot;
    *handle = (handle_t)(long)(index * 100 + 1);
    return answer(*handle, "handle", &gpu, &slot);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *handle) {
    char line[LINE], text[LINE];
    if (!open_sessions) return UNINITIALIZED;
    for (int gpu = 0; find_line(gpu, -1, line); gpu++)
        for (int slot = -1; slot < SLOTS; slot++)
            if (text_field(gpu, slot, "uuid", text) && !strcmp(text, uuid)) {
                int same_gpu, same_slot;
                *handle = (handle_t)(long)(gpu * 100 + 1 + slot + 1);
                return answer(*handle, "handle", &same_gpu, &same_slot);
            }
    return NOT_FOUND;
}

static int text_answer(handle_t handle, const char *function, char *out, unsigned size) {
    char text[LINE];
    int gpu, slot, error = answer(handle, function, &gpu, &slot);
    if (error) return error;
    text_field(gpu, slot, function, text);
    snprintf(out, size, "%s", text);
    return SUCCESS;
}

int nvmlDeviceGetUUID(handle_t handle, char *out, unsigned size) { return text_answer(handle, "uuid", out, size); }
int nvmlDeviceGetName(handle_t handle, char *out, unsigned size) { return text_answer(handle, "name", out, size); }

int nvmlDeviceGetMemoryInfo(handle_t handle, unsigned long long *out /* total, free, used */) {
    int gpu, slot, error = answer(handle, "memory", &gpu, &slot);
    if (error) return error;
    out[0] = number(gpu, slot, "total", 10);
    out[2] = number(gpu, slot, "used", 10) + number(gpu, slot, "reserved", 10);
    out[1] = out[0] - out[2];
    return SUCCESS;
}

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(handle_t handle, struct memory_v2 *out) {
    int gpu, slot, error = answer(handle, "memory", &gpu, &slot);
    if (!error) error = (int)number(gpu, slot, "memory2_error", 10);
    if (error) return error;
    out->total = number(gpu, slot, "total", 10);
    out->reserved = number(gpu, slot, "reserved", 10);
    out->used = number(gpu, slot, "used", 10);
    out->free = out->total - out->reserved - out->used;
    return SUCCESS;
}

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(handle_t handle, unsigned *count, struct process *out) {
    char text[LINE], *at;
    int gpu, slot, error = answer(handle, "programs", &gpu, &slot);
    unsigned room = *count;
    if (error) return error;
    *count = 0;
    text_field(gpu, slot, "programs", text);
    for (at = strtok(text, ","); at; at = strtok(NULL, ",")) {
        if (*count < room && out) {
            char *bytes = strchr(at, ':');
            out[*count].pid = (unsigned)strtoul(at, NULL, 10);
            out[*count].used = bytes[1] == '-' ? ~0ULL : strtoull(bytes + 1, NULL, 10);
        }
        ++*count;
    }
    return *count > room || (*count && !out) ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(handle_t handle, unsigned *out /* gpu, memory */) {
    int gpu, slot, error = answer(handle, "util", &gpu, &slot);
    if (error) return error;
    if (slot >= 0) return NOT_SUPPORTED; /* as the real one says of MIG instances */
    out[0] = (unsigned)number(gpu, slot, "util", 10);
    out[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(handle_t handle, unsigned long long *out) {
    char text[LINE];
    int gpu, slot, error = answer(handle, "energy", &gpu, &slot);
    if (error) return error;
    if (slot >= 0 || !text_field(gpu, slot, "energy", text)) return NOT_SUPPORTED;
    *out = strtoull(text, NULL, 10);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(handle_t handle, unsigned *current, unsigned *pending) {
    char text[LINE];
    int gpu, slot, error = answer(handle, "migmode", &gpu, &slot);
    if (error) return error;
    if (!text_field(gpu, slot, "mig", text)) return NOT_SUPPORTED;
    *current = *pending = (unsigned)atoi(text);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t handle, unsigned *count) {
    int gpu, slot;
    *count = SLOTS;
    return answer(handle, "migcount", &gpu, &slot);
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t handle, unsigned index, handle_t *instance) {
    char line[LINE];
    int gpu, slot, error = answer(handle, "migdevice", &gpu, &slot);
    if (error) return error;
    if (!find_line(gpu, (int)index, line)) return NOT_FOUND;
    *instance = (handle_t)((long)handle + 1 + (long)index);
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(handle_t handle, unsigned *mode) {
    int gpu, slot, error = answer(handle, "mode", &gpu, &slot);
    *mode = error ? 0 : (unsigned)number(gpu, slot, "mode", 10);
    return error;
}

int nvmlDeviceGetCpuAffinity(handle_t handle, unsigned words, unsigned long *out) {
    int gpu, slot, error = answer(handle, "affinity", &gpu, &slot);
    if (error) return error;
    memset(out, 0, words * sizeof *out);
    out[0] = (unsigned long)number(gpu, slot, "cores", 16);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(handle_t handle, int *major, int *minor) {
    char text[LINE];
    int gpu, slot, error = answer(handle, "cc", &gpu, &slot);
    if (error) return error;
    if (!text_field(gpu, -1, "cc", text)) return NOT_SUPPORTED;
    return sscanf(text, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(handle_t handle, struct pci *out) {
    int gpu, slot, error = answer(handle, "pci", &gpu, &slot);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", gpu);
    return error;
}

/* Where the link with this number leads: a GPU's number, -1 for a switch; 0 if there is no such link. */
static int link_end(handle_t handle, unsigned link, int *end) {
    char text[LINE], *at;
    int gpu, slot;
    if (answer(handle, "nvlink", &gpu, &slot) || slot >= 0 || !text_field(gpu, -1, "links", text)) return 0;
    for (at = strtok(text, ","); at && link; link--) at = strtok(NULL, ",");
    if (!at) return 0;
    *end = *at == 's' ? -1 : atoi(at);
    return 1;
}

int nvmlDeviceGetNvLinkState(handle_t handle, unsigned link, unsigned *active) {
    int end;
    *active = 1;
    return link_end(handle, link, &end) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(handle_t handle, unsigned link, unsigned *type) {
    int end;
    if (!link_end(handle, link, &end)) return INVALID_ARGUMENT;
    *type = end < 0 ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle_t handle, unsigned link, struct pci *out) {
    int end;
    if (!link_end(handle, link, &end) || end < 0) return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", end);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(handle_t handle, unsigned kind, unsigned counter, unsigned long long *count) {
    char text[LINE];
    int gpu, slot, error = answer(handle, "ecc", &gpu, &slot);
    (void)kind, (void)counter;
    if (error) return error;
    if (!text_field(gpu, -1, "ecc", text)) return NOT_SUPPORTED;
    *count = strtoull(text, NULL, 10);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(handle_t handle, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed) {
    int gpu, slot, error = answer(handle, "rows", &gpu, &slot);
    if (error) return error;
    *corrected = *not = 0;
    *pending = (unsigned)number(gpu, -1, "pending", 10);
    *failed = (unsigned)number(gpu, -1, "failure", 10);
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(handle_t handle, unsigned *pending) {
    int gpu, slot, error = answer(handle, "pages", &gpu, &slot);
    *pending = error ? 0 : (unsigned)number(gpu, -1, "pages", 10);
    return error;
}

int nvmlDeviceGetCurrentClocksEventReasons(handle_t handle, unsigned long long *reasons) {
    int gpu, slot, error = answer(handle, "throttle", &gpu, &slot);
    *reasons = error ? 0 : number(gpu, -1, "throttle", 16);
    return error;
}

struct event { handle_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
struct event_set { int seen; };

int nvmlEventSetCreate(struct event_set **out) {
    *out = calloc(1, sizeof **out);
    return open_sessions ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceRegisterEvents(handle_t handle, unsigned long long types, struct event_set *set) {
    int gpu, slot;
    (void)types, (void)set;
    return answer(handle, "register", &gpu, &slot);
}

static int next_event(struct event_set *set, struct event *out) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = fopen(path ? path : "/run/nvml-stub", "r");
    char line[LINE], *at;
    int seen = 0, found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, "event|", 6) || seen++ < set->seen) continue;
        memset(out, 0, sizeof *out);
        out->device = (handle_t)(long)(((at = strstr(line, "|gpu=")) ? atoi(at + 5) : 0) * 100 + 1);
        at = strstr(line, "|xid=");
        out->type = at ? XID : DOUBLE_BIT;
        out->data = at ? strtoull(at + 5, NULL, 10) : 0;
        set->seen++;
        found = 1;
    }
    fclose(file);
    return found;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned milliseconds) {
    if (!open_sessions) return UNINITIALIZED;
    for (unsigned waited = 0; ; waited += 20) {
        if (next_event(set, out)) return SUCCESS;
        if (waited >= milliseconds) return TIMEOUT;
        usleep(20000);
    }
}

int nvmlEventSetFree(struct event_set *set) {
    free(set);
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t instance, handle_t *gpu) {
    *gpu = (handle_t)(((long)instance - 1) / 100 * 100 + 1);
    return SUCCESS;
}
