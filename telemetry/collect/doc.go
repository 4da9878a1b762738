/*
Package collect keeps the reports of a local root's processes in files, and tells readers the sum.

# Basics

[Push] writes the reports of a process. [Read] and [ReadWords] add the reports up, and ask no process.
[Forget] removes prompts, as pages are removed. All files are in the directory "telemetry" below the
root, which has mode 0700; they have mode 0600:

	fold         held while files of other processes, or prompts, are changed
	totals.json  sums over processes that have ended
	p-X.lock     held by a process while it reports
	p-X.json     its latest [telemetry.Report], without prompts: replaced once a second while something
	             changes, else every 30 s
	p-X.words    its latest prompts, with Words: replaced when there are new ones

A process that has ended no longer holds its lock, however it ended. The next process or reader adds its
report to totals.json and removes it; its prompts stay.

# Guarantees

  - A total never falls, and nothing is counted twice: totals.json names the processes that are in it,
    is replaced in one step, and only then their files are removed. A reader reads it after the reports,
    and passes over those of the processes that it names.
  - A reader of a prompt's count finds the prompt: the prompts are written first. Where that fails, they
    come with a later report; those of before a process could make its first file are never told.
  - Words are in p-X.words alone, and none of them is of a request with kv_store: false. They are
    told for the namespace that is asked for, and go with [Forget], or when 32 processes have ended since.
    Forget also reaches those that a process has in memory alone, or was writing when it was killed.
  - A directory or a file of another user is not read, except by root, who changes nothing there. The
    directory is refused when it is a link or can be written by others.
  - Every file, list and wait has a bound, also while the disk hangs. A file that is no report is
    passed over, and removed when its process has ended. A report of another version stays for a program
    that can read it.
  - A disk that is full or hangs costs the process nothing but one goroutine that waits. Readers say
    that the directory takes no files where a process that runs has reported nothing for
    [telemetry.SilentAfter].

# Caveats

  - A process that is killed loses its counts since its last report, about one second's, or since the
    disk became full.
  - Files are written without fsync: they survive a killed process, not a power cut. Totals that are
    damaged afterwards are an error until the next process sets them aside, and Since begins anew.
  - The report of another machine with the same root, or of before a restart, counts as it is for a day
    before it is added. Machines whose locks do not reach each other and that add at the same moment may
    lose a total. Processes of other machines are never shown as running.
  - A person who removes the lock of a process that runs, and not its other files, takes the process
    out of the state until its next report. With the directory, its counts so far are gone as well.
  - Of the models of a root the first 63 have totals of their own, all later ones share one.
*/
package collect
