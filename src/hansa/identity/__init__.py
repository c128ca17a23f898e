"""Who may be a member: keys, certificates, the certificate authority, enrolment, TLS contexts.

A federation has a certificate authority (`authority`). Each node has an Ed25519 key pair, from
which its id follows (`keys`), and a certificate over that key with its claims (`certificates`). A
node loads its certificate and the federation's roots from files (`credentials`), proves them to
neighbours by mutual TLS (`tls`), and gets them by an invitation (`enrolment`) or by hand.
"""
