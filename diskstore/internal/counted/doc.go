/*
Package counted is a tier whose files are counted.

Tier puts files into a tier and takes them out, and with each changes two numbers: those of the
tier's ledger, which limit budgets, and those of this process, which people see. Count lists the
files and replaces both. A file is visible and counted at once for every count: counts exclude
the moment in which a file appears or goes, and nothing else. No file is synced meanwhile, so a
device that takes long, or hangs, holds up the upload that waits for it and nothing else.

First keeps the result of the first count, which a store begins when it opens.
*/
package counted
