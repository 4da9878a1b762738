/*
Package collect carries reports of processes to one collector for each local root, and tells
readers the sum.

# Basics

[Serve] runs in every server process of a root. The process that holds the lock collects; the
others wait, and one of them takes over within about a second after the holder ends or is
killed. [Push] sends the reports of a process. [Read] and [ReadWords] return the state. All
files are in the directory "telemetry" below the root, which has mode 0700:

	lock         held by the collector
	socket       a Unix socket, mode 0600
	totals.json  the totals, mode 0600

Over the socket the collector speaks HTTP with JSON:

	POST /v1/report              a [telemetry.Report]; with ?last=1 the last one of a process
	GET  /v1/state               a [telemetry.State] without Words
	GET  /v1/words?namespace=N   the same, with the Words of that namespace

# Guarantees

  - A total never falls, and nothing is counted twice: not when a process or the collector is
    killed, not when a report comes twice, late, or after its process was taken for ended.
  - A reader sees no total that is not in totals.json, so that a later collector, or a reader
    without one, never shows less. A report with ?last=1 is answered when it is in the file.
  - Words, tokens and prompts are never in the file. Words leave the collector only over the
    socket, for the namespace that is asked for.
  - Only the directory's owner and root are answered, where the system tells the user of a
    connection (Linux, macOS). Elsewhere the mode of the directory is the only guard.
  - The directory is refused when it is a link, belongs to another user or can be written by
    others.
  - Every buffer, list, connection and wait has a bound, also while the disk hangs.
  - A collector that is missing, or that accepts and never answers, costs the pushing process
    nothing but one goroutine that waits.

# Caveats

  - totals.json is written without fsync: it survives a killed process, not a power cut. A file
    that is damaged afterwards is set aside, and Since begins anew.
  - While the file cannot be written the state is answered nevertheless. A collector that is
    killed then has shown totals that its successor does not know, except those of processes
    that still run.
  - A process that is killed loses the totals after its last report, about one second's. If the
    collector is killed with it, ten seconds' may be lost that nobody has read.
  - After Since began anew, a process that started before counts as a whole.
  - The ids of processes that ended are kept for a while, and a bounded number of them. A
    process that returns after its id was dropped, and any other that started before it and was
    never heard of, counts from its first report on.
  - Of the models of a root the first 63 have totals of their own, all later ones share one.
  - The lock of a root on a network filesystem may reach other machines, the socket does not:
    processes on the machines that do not hold the lock are not heard. Where the lock does not
    reach other machines either, collectors take the socket from each other, ever less often, and
    a total may fall.
  - On Windows the path of the socket is limited to 107 bytes.
*/
package collect
