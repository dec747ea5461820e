/* The states of all entries of a tree, for `tree_states.py`: a stat of each takes 0.4 to 1.4 us here and 2 us in Python. On the
   way it watches the folders, for `tree_watch.py`.

   A record is: state u64, length u16, path below the top (no NUL). The state is computed as in `tree_states.py`. Folders come
   before what is in them, entries in the order of the folder: a tree that did not change gives the same bytes again. Names are
   the sandbox's, so hostile: every length is checked, and no symbolic link is followed. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TOO_MUCH = -1, TOO_LATE = -2, NO_ROOM = -3, UNREADABLE = -4 };
enum { HEAD = 10, LONGEST_PATH = 4000, MOST_HIDDEN_LEVELS = 50 };
enum { NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR, ALL = NAMES | IN_ATTRIB | IN_MODIFY | IN_CLOSE_WRITE };

struct limits {
    int64_t entries, levels;
    double cpu_seconds, clock_seconds; /* when to give up, by this thread's clock of its CPU time and by the monotonic one */
    const char *skipped; /* names of folders that are not entered, each with a NUL behind it; an empty one ends them */
};

/* How the folders are watched. Without `inotify` (-1) they are not. */
struct watch {
    int32_t inotify;
    int32_t hidden; /* whether to watch what is in skipped folders and in git's, too; else they are watched already */
    int32_t folders; /* how many more folders may be watched; negative: there were more */
    int32_t entries; /* the same for the entries of folders that have no states */
    int32_t blind; /* set if something can change without a notice */
};

struct tree {
    unsigned char *records;
    size_t size, used;
    int64_t entries;
    const struct limits *limits;
    struct watch *watch;
    dev_t device;
    double hidden_cpu, hidden_clock; /* until when hidden folders are watched: the rest of the time is for the states */
};

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int is_skipped(const char *skipped, const char *name)
{
    for (; *skipped; skipped += strlen(skipped) + 1)
        if (!strcmp(skipped, name))
            return 1;
    return 0;
}

static uint64_t nanoseconds(struct timespec time)
{
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t opaque(const struct stat *found)
{
    uint64_t digest = (uint64_t)found->st_size * 0x9E3779B97F4A7C15 + nanoseconds(found->st_mtim) * 0xC2B2AE3D27D4EB4F +
              nanoseconds(found->st_ctim) * 0x165667B19E3779F9 + (uint64_t)found->st_ino * 0xD6E8FEB86659FD93;
    return digest >> 20 << 16 | (found->st_mode & 0xFFFF);
}

/* Whether the kernel notices every change on a folder's file system: not on overlays, or where a server holds the files. */
static int gives_notices(int folder)
{
    struct statfs found;
    if (fstatfs(folder, &found))
        return 0;
    switch ((unsigned long)found.f_type) {
    case EXT4_SUPER_MAGIC: case XFS_SUPER_MAGIC: case BTRFS_SUPER_MAGIC: case TMPFS_MAGIC: return 1;
    default: return 0;
    }
}

static void watch_folder(struct watch *watch, int folder, uint32_t mask)
{
    char path[32];
    if (watch->inotify < 0 || watch->blind)
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d/.", folder); /* the dot: the folder, and not the link to it */
    if (watch->folders-- <= 0 || inotify_add_watch(watch->inotify, path, mask) < 0)
        watch->blind = 1;
}

/* Watch a folder whose entries have no states, and those in it, for new names: what is linked into them can be changed there. */
static void watch_hidden(struct tree *tree, int above, const char *name, int levels)
{
    char entries[2048] __attribute__((aligned(8)));
    struct watch *watch = tree->watch;
    if (watch->inotify < 0 || !watch->hidden || watch->blind)
        return;
    int folder = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (folder < 0 || levels > MOST_HIDDEN_LEVELS || now(CLOCK_THREAD_CPUTIME_ID) > tree->hidden_cpu ||
        now(CLOCK_MONOTONIC) > tree->hidden_clock)
        watch->blind = 1;
    else
        watch_folder(watch, folder, NAMES);
    long size;
    while (!watch->blind && (size = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
        for (long at = 0; at < size;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            at += entry->d_reclen;
            if (watch->entries-- <= 0 || entry->d_type == DT_UNKNOWN)
                watch->blind = 1;
            if (entry->d_type == DT_DIR && strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                watch_hidden(tree, folder, entry->d_name, levels + 1);
        }
    if (folder >= 0)
        close(folder);
}

/* Note whether an entry can change without a notice in the folder above it: by another name, or on another file system. */
static void find_blind_spot(struct tree *tree, const struct stat *found, int entered)
{
    if (found->st_dev != tree->device || (S_ISDIR(found->st_mode) ? !entered : found->st_nlink > 1))
        tree->watch->blind = 1;
}

/* Add the record of one entry of the folder with the path `prefix` (which ends with a slash, or is empty). */
static int add(struct tree *tree, const char *prefix, size_t prefix_size, int levels, const char *name, const struct stat *found)
{
    size_t size = strlen(name), length = prefix_size + size;
    if (length > LONGEST_PATH) {
        tree->watch->blind = 1;
        return 0;
    }
    if (tree->size - tree->used < HEAD + length)
        return NO_ROOM;
    if (++tree->entries > tree->limits->entries)
        return TOO_MUCH;
    int skipped = S_ISDIR(found->st_mode) && is_skipped(tree->limits->skipped, name);
    int entered = S_ISDIR(found->st_mode) && levels < tree->limits->levels && !skipped;
    find_blind_spot(tree, found, entered || skipped);
    uint64_t state = entered ? found->st_mode : opaque(found);
    uint16_t short_length = (uint16_t)length;
    unsigned char *record = tree->records + tree->used;
    memcpy(record, &state, 8);
    memcpy(record + 8, &short_length, 2);
    memcpy(record + HEAD, prefix, prefix_size);
    memcpy(record + HEAD + prefix_size, name, size);
    tree->used += HEAD + length;
    return 0;
}

/* Add the entries of a folder, and close it. The folder is watched first: what changes from then on is noticed. */
static int add_entries(struct tree *tree, int folder, const char *prefix, size_t prefix_size, int levels)
{
    char entries[16384] __attribute__((aligned(8)));
    int problem = 0;
    long size;
    watch_folder(tree->watch, folder, ALL);
    while (!problem && (size = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
        for (long at = 0; !problem && at < size;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            const char *name = entry->d_name;
            struct stat found;
            at += entry->d_reclen;
            if (!strcmp(name, ".") || !strcmp(name, ".."))
                continue;
            if (strcmp(name, ".git") && !fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW))
                problem = add(tree, prefix, prefix_size, levels, name, &found);
            if (entry->d_type == DT_UNKNOWN)
                tree->watch->blind = 1;
            if (entry->d_type == DT_DIR && (!strcmp(name, ".git") || is_skipped(tree->limits->skipped, name)))
                watch_hidden(tree, folder, name, 1);
        }
    close(folder);
    return problem;
}

/* Whether a record is that of a folder to enter: its state is a mode and nothing else. */
static int is_entered(const unsigned char *record)
{
    uint64_t state;
    memcpy(&state, record, 8);
    return state <= 0xFFFF && S_ISDIR((mode_t)state);
}

/* Write the records of everything below the folder `top`. Returns their size, or why there are none. */
int64_t read_tree(int top, unsigned char *records, size_t size, const struct limits *limits, struct watch *watch)
{
    struct stat found;
    if (fstat(top, &found))
        return UNREADABLE;
    double cpu = now(CLOCK_THREAD_CPUTIME_ID), clock = now(CLOCK_MONOTONIC);
    struct tree tree = {
        records, size, 0, 0, limits, watch, found.st_dev,
        cpu + (limits->cpu_seconds - cpu) / 2, clock + (limits->clock_seconds - clock) / 2,
    };
    watch->blind |= !gives_notices(top);
    struct open_how how = {
        .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS
    };
    char path[LONGEST_PATH + 2] = ".";
    long folder = syscall(SYS_openat2, top, path, &how, sizeof how);
    if (folder < 0)
        return UNREADABLE; /* or a kernel without openat2 */
    int problem = add_entries(&tree, (int)folder, "", 0, 1);
    for (size_t at = 0; !problem && at < tree.used;) {
        uint16_t length;
        const unsigned char *record = records + at;
        memcpy(&length, record + 8, 2);
        at += HEAD + length;
        if (!is_entered(record))
            continue;
        memcpy(path, record + HEAD, length);
        path[length] = 0;
        folder = syscall(SYS_openat2, top, path, &how, sizeof how);
        if (folder < 0) { /* unreadable, or replaced */
            watch->blind = 1;
            continue;
        }
        int levels = 2;
        for (const char *here = path; *here; here++)
            levels += *here == '/';
        path[length] = '/';
        problem = add_entries(&tree, (int)folder, path, (size_t)length + 1, levels);
        if (!problem && now(CLOCK_THREAD_CPUTIME_ID) > limits->cpu_seconds)
            problem = TOO_MUCH;
        if (!problem && now(CLOCK_MONOTONIC) > limits->clock_seconds)
            problem = TOO_LATE;
    }
    return problem ? problem : (int64_t)tree.used;
}

/* Open an inotify instance that the kernel counts for `user`, and not for this thread's uid, which many share; -1: that failed. */
int open_inotify(unsigned user)
{
    uid_t real, own, saved;
    if (syscall(SYS_getresuid, &real, &own, &saved) || syscall(SYS_setresuid, -1, user, -1)) /* of this thread alone */
        return -1;
    int inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (syscall(SYS_setresuid, -1, own, -1))
        abort(); /* this thread must not keep the other uid */
    return inotify;
}

/* Take all notices. Returns the kinds that there were (IN_...), those of a queue that ran over included. */
uint32_t take_notices(int inotify)
{
    char notices[16384] __attribute__((aligned(8)));
    uint32_t kinds = 0;
    for (int64_t size, total = 0; (size = read(inotify, notices, sizeof notices)) > 0;) {
        for (int64_t at = 0; at < size;) {
            const struct inotify_event *notice = (const void *)(notices + at);
            kinds |= notice->mask;
            at += (int64_t)(sizeof *notice + notice->len);
        }
        if ((total += size) > 1 << 22) /* somebody goes on making them: more than the kernel keeps */
            return kinds | IN_Q_OVERFLOW;
    }
    return kinds;
}
