/*
Package inspect looks into the roots of a store, for people.

Check reads every page and reports what is wrong, and repairs it where that is asked for.
Find, Recent and Chain look pages up by the beginning of a key, by time, and by their order.
Export writes a conversation as one archive, and Import checks such an archive and stores its
pages. Roots may be in use by servers meanwhile.

What removes good pages is in package diskstore: Root.GC.
*/
package inspect
