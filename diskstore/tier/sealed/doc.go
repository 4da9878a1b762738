/*
Package sealed keeps a tier's files encrypted in another tier, such as a bucket that a team shares.

	format.go             the form of a file and of the ledger
	names.go              the permutations of names
	keys.go               keys, and what is derived from them
	tier.go, list.go      the methods of a tier
	blob.go, upload.go    reading and writing one file

# Who learns what

The members of a team have its key. The operator of the engine that keeps the tier has not.

The operator reads no prompt, no row of a page and no name of a model, and cannot test a guess: without the
key nobody computes the name of a page from its tokens. The operator sees how many files and branches there
are, their lengths, the classes of pages and tails, the number of tokens in each branch and the marks for
longer ones, when and by whom each is used, which files belong to one fingerprint, and which pages different
members ask for: a page has one name. Keys that begin with the same byte do so when sealed, because tiers
list by it. An operator who knows many prompts and their names learns the permutation of that byte, and then
learns of each further page whether a guess may be right: one wrong guess in 256 passes.

The operator may delete a file, refuse it, bring an old one of the same name back, which is the same page,
and undo a removal. Old bytes of a ledger make budgets wrong, and a branch may lead to nothing. All of that
costs time. Every other change is found: other bytes, a shorter file, chunks of another file or in another
order, and a file in another's place are pagefile.ErrDamaged.

A member reads everything, and may store wrong rows under any name: pages of a tier are as trustworthy as
each member. Who had the key reads what was stored until then, and with access to the engine what is stored
with that key later: rotate the key when a member leaves. A key protects nothing that was copied before.

# Rotation

First write the new key as the second line of everybody's key file: it opens. Then make it the first line of
each: it seals, and the former one opens. Delete the former line when its files are gone, by age or by the
budget. A file without a key stays until a rule of the engine expires it.

While there are two keys, a look-up asks for the former names of what is missing under the current ones, of a chain
in turns of each key, and a new file takes the place of the former one.

# One address for each key

A permutation opens any name, also one of another team. So Survey reads the header of one file of each
fingerprint, once, and leaves out fingerprints whose key is unknown: the log says so once. They are not
counted and not collected. A ledger that is not sealed with a key of here is ErrOtherKey, and not none: two
teams would replace each other's at each write. So nothing is written below a budget by a process with a
wrong key. Give each key a bucket or prefix of its own, not one that was used without a key.

A damaged file that a key here has sealed is found, and reading it is pagefile.ErrDamaged. Its Info.Bytes is
1 where its length is impossible. A damaged ledger is none.
*/
package sealed
