/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * ptscope wire format: what the debugfs file "dump" takes and gives.
 *
 * This header is read by three readers: the module, the C core of the Python
 * side, and cffi, which makes its definitions from the text below.  To stay
 * readable by the last, it holds nothing but comments, "#define NAME INTEGER"
 * and plain structs of fixed-width fields; no macros with arguments, no
 * conditionals other than the guard and the include.
 *
 * A program writes one request: struct ptscope_request followed by
 * range_count times struct ptscope_range, in a single write().  Then it
 * reads until end of file.  Each read() gives one batch of whole records,
 * taken in one hold of the target's lock.  The first record of each batch is
 * struct ptscope_batch and the last batch ends with struct ptscope_end.  A
 * stream without that end record was cut short.
 *
 * All fields are in the byte order of the machine.  Each struct is a multiple
 * of 8 bytes long, its padding is explicit, named "reserved" and zero.
 *
 * Errors of write(), the same for "walk" and "dump":
 *
 *   EPERM            CAP_SYS_ADMIN is missing, or lockdown forbids it
 *   EBUSY            this open file already has its request ("dump" only)
 *   ENODATA          the request is empty
 *   E2BIG            the request is longer than allowed, or has too many ranges
 *   EBADMSG          binary request shorter or longer than its header says
 *   EPROTO           wrong magic
 *   EPROTONOSUPPORT  another version or struct size of this format
 *   EINVAL           text: not "PID ADDR"; binary: unknown flag, last < first
 *   ESRCH            no such process in the PID namespace of the caller
 *   EOPNOTSUPP       the target is a kernel thread: it has no user half
 *   ENXIO            the target has exited (a zombie) and has no tables left
 *   ERANGE           an address is not canonical for the running paging mode
 *   EADDRNOTAVAIL    an address lies in the other half (a user address for
 *                    "kernel", a kernel address for a PID)
 *   EAGAIN           text: the kernel half changed at each of many reads, or
 *                    the target executed another program meanwhile
 *   EINTR            the caller was killed while it waited
 *
 * Errors of read(): ENODATA without a request before it, EMSGSIZE when the
 * buffer is smaller than PTSCOPE_MIN_READ, EPERM and EINTR as above.  A read
 * that fails loses nothing: the next one gives the same piece of the stream.
 */
#ifndef PTSCOPE_H
#define PTSCOPE_H

#include <linux/types.h>

#define PTSCOPE_MAGIC 0x43535450	/* "PTSC" in memory on little endian */
#define PTSCOPE_VERSION 1

/* Values of ptscope_request.pid other than a PID */
#define PTSCOPE_PID_SELF 0
#define PTSCOPE_PID_KERNEL -1

/* Bits of ptscope_request.flags */
#define PTSCOPE_WITH_VMAS 1		/* the VMAs come along, before their entries */
#define PTSCOPE_WITH_USER_PGD 2		/* under PTI, the user copy of root entries too */

#define PTSCOPE_MAX_RANGES 1024
#define PTSCOPE_MIN_READ 4096		/* bytes: the smallest buffer read() takes */
#define PTSCOPE_MAX_READ 262144		/* bytes: no batch is longer than this */

/* Both ends are inside the range, so that the last byte can be named. */
struct ptscope_range {
	__u64 first;
	__u64 last;
};

struct ptscope_request {
	__u32 magic;
	__u16 version;
	__u16 header_size;		/* sizeof(struct ptscope_request) */
	__s32 pid;
	__u32 flags;
	__u32 range_count;
	__u32 range_size;		/* sizeof(struct ptscope_range) */
};

/* ptscope_record.type */
#define PTSCOPE_RECORD_BATCH 1
#define PTSCOPE_RECORD_VMA 2
#define PTSCOPE_RECORD_TABLE 3
#define PTSCOPE_RECORD_END 4

/*
 * ptscope_record.flags.  AGAIN marks what this stream has already reported
 * for the same range: a batch that resumes in the middle of a table or VMA
 * reads the way down to it anew, so that each batch is consistent in itself;
 * so does a batch that enters or leaves a hugetlb VMA, which changes locks.
 * Such a table record has a single entry.  Whoever counts must leave these out.
 *
 * REPEATED, in the kernel half only: each entry of the record has the value of
 * the entry right before it in the table, so all point to the same next table.
 * That table was reported below the first of them and is not reported again:
 * KASAN maps one page trillions of times in this way.
 */
#define PTSCOPE_AGAIN 1			/* table, vma */
#define PTSCOPE_USER_PGD 2		/* table: from the PTI user copy of the PGD */
#define PTSCOPE_HUGETLB 4		/* vma */
#define PTSCOPE_REPEATED 8		/* table: above PTE level, of the kernel half */

struct ptscope_record {
	__u16 type;
	__u16 flags;
	__u32 size;			/* bytes, this header included */
};

/* ptscope_batch.lock: what kept the tables of this batch alive */
#define PTSCOPE_LOCK_READ 1		/* mmap_lock for reading */
#define PTSCOPE_LOCK_WRITE 2		/* mmap_lock for writing, for addresses outside VMAs */
#define PTSCOPE_LOCK_NONE 3		/* the kernel half: a snapshot, read twice and equal */

struct ptscope_batch {
	struct ptscope_record record;
	__u32 magic;
	__u16 version;
	__u16 header_size;		/* sizeof(struct ptscope_batch) */
	__u64 sequence;			/* 0, 1, 2, ... in this stream */
	__u64 lock_ns;			/* how long the lock was held; 0 without one */
	__u32 lock;
	__u32 retries;			/* kernel half: reads thrown away because they differed */
};

struct ptscope_vma {
	struct ptscope_record record;
	__u64 start;
	__u64 end;			/* first address after it */
	__u64 vm_flags;			/* raw; names of the bits are in "layout" */
	__u64 page_prot;		/* raw vm_page_prot */
	__u64 pgoff;			/* pages */
	__u64 inode;			/* 0 without a file */
	__u32 dev_major;
	__u32 dev_minor;
};

/* ptscope_table.level; the root is PGD however many levels there are */
#define PTSCOPE_LEVEL_PTE 1
#define PTSCOPE_LEVEL_PMD 2
#define PTSCOPE_LEVEL_PUD 3
#define PTSCOPE_LEVEL_P4D 4
#define PTSCOPE_LEVEL_PGD 5

/*
 * Part of one table: "count" raw entries of 8 bytes follow, as they lie in
 * memory.  Entry i of them has index + i in the table, its physical address is
 * table_pa + 8 * (index + i), and it maps what begins at
 * address + i * (size mapped by one entry of the level).
 * A part begins and ends with a non-empty entry; long runs of empty entries
 * separate parts, and empty tables give none.  A range of a single address
 * (first == last) is the exception: it reports one entry at each level, the
 * last of them also when it is empty.  Tables come before the tables they point to: a
 * part above PTE level ends with the entry that was descended from, and the
 * parts of that next table follow it, with VMAs in between where they begin.
 * From the entries of a part marked REPEATED nothing was descended.
 */
struct ptscope_table {
	struct ptscope_record record;
	__u64 address;
	__u64 table_pa;
	__u16 level;
	__u16 index;
	__u32 count;
};

/* ptscope_end.status */
#define PTSCOPE_END_DONE 1
#define PTSCOPE_END_EXITED 2		/* the target exited meanwhile */
#define PTSCOPE_END_EXECED 3		/* the target has another address space now */
#define PTSCOPE_END_UNSTABLE 4		/* the kernel half changed at each of many reads */

struct ptscope_end {
	struct ptscope_record record;
	__u32 status;
	__u32 reserved;
	__u64 address;			/* first address not walked; 0 when all were */
};

/*
 * /dev/ptscope-map: write() takes a number of pages as text, once for each
 * open file; read() then gives their physical addresses, 8 bytes each; mmap()
 * maps them.  The offset of mmap() is bytes into the pages, plus one of the
 * kinds below shifted by PTSCOPE_MAP_SHIFT.
 *
 * The pages hold zeros at first.  They are freed when the file is closed and no
 * mapping of it is left.
 *
 * Errors of all calls: EPERM as above.  Of write(): EINVAL not a number; ERANGE
 * none, or more than PTSCOPE_MAP_MAX_BYTES; ENOSPC more than that together with
 * those of other open files; EBUSY it has its pages; ENOMEM; EINTR.  Of read()
 * and mmap(): ENODATA no pages yet; of read(): EINVAL not whole addresses; of
 * mmap(): EINVAL no such kind, or a private mapping; ENXIO beyond the pages;
 * EOPNOTSUPP this kernel has no such mapping; ENOMEM; EINTR.
 */
#define PTSCOPE_MAP_SHIFT 40
#define PTSCOPE_MAP_REMAP 0		/* remap_pfn_range(), all at once */
#define PTSCOPE_MAP_INSERT 1		/* vm_insert_page(), all at once */
#define PTSCOPE_MAP_FAULT 2		/* vmf_insert_pfn(), a page at its first fault */
#define PTSCOPE_MAP_HUGE 3		/* vmf_insert_pfn_pmd() where frames allow, else as FAULT */
#define PTSCOPE_MAP_MAX_BYTES 1073741824

#endif /* PTSCOPE_H */
