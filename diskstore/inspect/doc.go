/*
Package inspect checks, finds, exports and imports pages in the roots of a store, for people.

Check reads every page, reports problems and, on request, repairs them. Find, Recent and
Chain look up pages by the beginning of a key, by time, and by order in the sequence. Export
writes a conversation as one archive. Import checks such an archive and stores its pages.
Servers may use the roots at the same time. The owner of the directories in Roots, such as a
diskstore.Root, closes them.

Package diskstore has the operation that removes good pages: Root.GC.
*/
package inspect
